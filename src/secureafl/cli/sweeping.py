"""Cells of a grid or of a comparison: run them all, then show what came out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from secureafl.cli.screen import note_majority, print_comparison
from secureafl.experiment import Experiment
from secureafl.library.running import run_cells
from secureafl.report.cells import cell_of
from secureafl.report.formatting import shares, spread
from secureafl.report.page import write_report
from secureafl.sweep.engines import EngineName
from secureafl.tracking.callback import Callback


def run_with_progress(
    cells: Mapping[str, Experiment],
    folder: Path,
    engine: EngineName,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
    callbacks: Sequence[Callback] = (),
) -> list[str]:
    """Run the cells that have no result yet; return the names of all that are finished."""
    if not quiet:
        note_majority(cells.values())
    return run_cells(cells, folder, engine, workers, checkpoint_seconds, quiet, callbacks=callbacks)


def report_comparison(names: Sequence[str], folder: Path, quiet: bool) -> None:
    """Write the page of these runs and print one line about each of them."""
    runs = [folder / name for name in names]
    if not runs:
        return
    page = write_report(runs, folder / "report")
    if not quiet:
        print_comparison(runs)
        print(f"figures: {page.parent}\npage:    {page}")


def print_table(names: Sequence[str], folder: Path) -> None:
    """Print a line for each cell, seeds taken together: mean and standard deviation over them."""
    groups: dict[str, list[Path]] = {}
    for name in names:
        without_seed = re.sub(r"-?seed\d+$", "", name) or "run"
        groups.setdefault(without_seed, []).append(folder / name)
    cells = {name: cell_of(runs, {}) for name, runs in groups.items()}
    metrics = list(dict.fromkeys(m for cell in cells.values() for m in cell.figures))
    table = Table(Column("cell", overflow="fold"), "seeds")
    for heading in (*map(str.upper, metrics), "accepted:\nhonest, malicious"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cell in cells.items():
        found = [spread(cell.figures.get(metric), cell.finished) for metric in metrics]
        table.add_row(Text(name), str(cell.finished), *found, shares(cell))
    Console().print(table)
