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
_NARROWEST = 8  # letters of a column that is folded


def results(
    query: Annotated[
        str | None, typer.Argument(help="SQL over the tables runs and evaluations; none: all runs.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Folder searched for run folders; may be given several times."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object per row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a .parquet or .csv file instead.")
    ] = None,
) -> None:
    """Ask all run folders at once, in SQL: a row of 'runs' per run, of 'evaluations' per figure."""
    from secureafl.cli.screen import runs_in
    from secureafl.runs.query import ALL, ResultsTable

    table = ResultsTable(runs_in(runs or [Path("runs")]))
    if out:
        table.write(out, query or ALL)
        print(out)
        return
    for_people = not as_json and not as_csv
    answer = table.overview() if for_people and not query else table.query(query or ALL)
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
    """Print a table, or a line per value where the terminal is too narrow for the columns."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table
    from rich.text import Text

    console, shown = Console(), [[_shown(value) for value in row] for row in rows]
    cells = zip(columns, *shown, strict=True)
    narrowest = [min(_NARROWEST, max(map(len, column))) for column in cells]
    if sum(narrowest) + 3 * len(columns) + 1 > console.width:  # with the lines between
        _print_by_row(columns, shown)
        return
    titles = zip(columns, narrowest, strict=True)
    table = Table(
        *(Column(escape(name), overflow="fold", min_width=width) for name, width in titles)
    )
    for row in shown:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_by_row(columns: list[str], rows: list[list[str]]) -> None:
    width = max(map(len, columns))
    for row in rows:
        lines = [f"{name:{width}}  {value}" for name, value in zip(columns, row, strict=True)]
        print(*lines, "", sep="\n")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
