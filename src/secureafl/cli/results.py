"""`secureafl results`: run folders, asked in SQL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = (
    'Example: secureafl results "select defense, attack, avg(ter_late_mean) as ter from runs '
    'group by all order by ter" --runs runs/table'
)


def results(
    query: Annotated[
        str, typer.Argument(help="SQL over the tables runs and evaluations; none: all runs.")
    ] = "select * from runs",
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Folder searched for run folders; may be given several times."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object per row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write a .parquet or .csv file instead.")] = None,
) -> None:
    """Ask all run folders at once, in SQL: a row of 'runs' per run, of 'evaluations' per figure."""
    from secureafl.cli.screen import runs_in
    from secureafl.runs.query import Answer, ResultsTable

    table = ResultsTable(runs_in(runs or [Path("runs")]))
    if out:
        table.write(out, query)
        print(out)
        return
    answer: Answer = table.query(query)
    if as_json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        print(json.dumps(rows, default=str))
    elif as_csv:
        _print_csv(answer.columns, answer.rows)
    else:
        _print_table(answer.columns, answer.rows)


def _print_csv(columns: list[str], rows: list[tuple[object, ...]]) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(columns)
    writer.writerows(rows)


def _print_table(columns: list[str], rows: list[tuple[object, ...]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(*map(escape, columns))
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    Console().print(table)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
