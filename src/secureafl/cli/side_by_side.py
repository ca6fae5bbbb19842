"""`secureafl compare`: cells in parallel, then a table, pictures and a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from secureafl.cli.progress import make_display
from secureafl.cli.screen import print_comparison
from secureafl.experiment import Experiment
from secureafl.report.page import write_report
from secureafl.sweep.cells import Update
from secureafl.sweep.local import default_workers, run_cells


def run_side_by_side(
    cells: Mapping[str, Experiment],
    folder: Path,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
) -> bool:
    """Run all cells and report on them; whether all of them finished."""
    workers = workers or max(default_workers(cell.device) for cell in cells.values())
    cells = {name: _with_threads(cell, workers) for name, cell in cells.items()}
    ended: dict[str, Update] = {}
    with make_display({name: cell.rounds for name, cell in cells.items()}, quiet) as display:
        for update in run_cells(cells, folder, workers, checkpoint_seconds):
            display.show(update.cell, update.progress, final=update.state == "finished")
            if update.state != "running":
                ended[update.cell] = update
            if update.state == "failed":
                display.note(f"{update.cell} failed: {update.message}")
    finished = [folder / name for name in cells if ended[name].state == "finished"]
    if finished:
        page = write_report(finished, folder / "report")
        if not quiet:
            print_comparison(finished)
            print(f"figures: {page.parent}\npage:    {page}")
    return len(finished) == len(cells)


def _with_threads(experiment: Experiment, workers: int) -> Experiment:
    """Processes that share the cores must not each start a thread per core."""
    if experiment.threads:
        return experiment
    return dataclasses.replace(experiment, threads=max(1, default_workers("cpu") // workers))
