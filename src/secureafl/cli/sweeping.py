"""Cells of grids or of a comparison: run them all, then show what came out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from secureafl.cli.screen import print_comparison, print_notes
from secureafl.core.errors import ConfigError
from secureafl.experiment import Experiment
from secureafl.library.running import run_cells
from secureafl.report.cells import cell_of
from secureafl.report.formatting import shares, spread
from secureafl.report.page import write_report
from secureafl.runs.layout import CHECKPOINT, RESULT
from secureafl.sweep.cells import Update
from secureafl.sweep.engines import EngineName, require_runnable
from secureafl.sweep.once import MadeOnce
from secureafl.tracking.callback import Callback


def grid_folders(files: Sequence[Path], out: Path | None) -> dict[Path, Path]:
    """The folder of each grid: `out` itself if there is one grid, else one in it; and its file."""
    if out and len(files) == 1:
        return {out: files[0]}
    found = {(out or Path("runs")) / file.stem: file for file in files}
    if len(found) < len(files):
        names = ", ".join(map(str, files))
        raise ConfigError(f"{names}: two grids of one name; run one of them alone, with --out")
    return found


def run_with_progress(
    tables: Mapping[Path, Mapping[str, Experiment]],
    engine: EngineName,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
    callbacks: Sequence[Callback] = (),
) -> dict[Path, list[str]]:
    """Run the cells that have no result yet; return the names of all that are finished.

    The cells of all tables, each with a folder, are in one queue, and those that are the same are
    made once.
    """
    wanted = {folder / k: cell for folder, cells in tables.items() for k, cell in cells.items()}
    runs, finished = MadeOnce(tables), set[Path]()
    for place in sorted(wanted, key=_progress):
        runs.want(place, wanted[place])
    require_runnable(engine, runs.cells, runs.folder)
    if not quiet:
        print_notes(wanted.values())

    def take_in(update: Update) -> Sequence[str]:
        if update.state in ("finished", "failed"):
            places = runs.end(update.cell)
            finished.update(places if update.state == "finished" else ())
        return ()

    given = (runs.cells, runs.folder, engine, workers, checkpoint_seconds, quiet)
    run_cells(*given, callbacks=callbacks, go_on=take_in)
    return {
        folder: [name for name in cells if folder / name in finished]
        for folder, cells in tables.items()
    }


def _progress(place: Path) -> tuple[bool, bool]:
    """What sorts first is farthest: who wants the same run elsewhere gets a copy of it."""
    return not (place / RESULT).is_file(), not (place / CHECKPOINT).is_file()


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
