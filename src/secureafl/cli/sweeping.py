"""`secureafl sweep`: the cells of a grid, then one line for each, over its seeds."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from secureafl.cli.sweep_progress import make_sweep_display
from secureafl.experiment import Experiment
from secureafl.runs.layout import RESULT, read_json
from secureafl.sweep.engines import EngineName, find_engine, run_sweep


def run_with_progress(
    cells: Mapping[str, Experiment],
    folder: Path,
    engine: EngineName,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
) -> list[str]:
    """Run what is left of the cells; the names of those that are finished."""
    states: dict[str, str] = {}
    run_cells = find_engine(engine)
    with make_sweep_display({name: cell.rounds for name, cell in cells.items()}, quiet) as display:
        for update in run_sweep(run_cells, cells, folder, workers, checkpoint_seconds):
            display.tell(update)
            states[update.cell] = update.state
            if update.state == "waiting":
                display.note(f"{update.cell} failed and is tried again later: {update.message}")
            elif update.state == "failed":
                display.note(f"{update.cell} failed: {update.message}")
    return [name for name in cells if states[name] == "finished"]


def print_table(names: Sequence[str], folder: Path) -> None:
    """One line per cell but for its seeds: mean and standard deviation over them."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        without_seed = re.sub(r"-?seed\d+$", "", name) or "run"
        groups.setdefault(without_seed, []).append(read_json(folder / name / RESULT))
    metrics = list(dict.fromkeys(m for runs in groups.values() for m in runs[0]["metrics"]))
    table = Table(Column("cell", overflow="fold"), "seeds")
    for heading in (*map(str.upper, metrics), "accepted:\nhonest, malicious"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, runs in groups.items():
        figures = [_over([r["metrics"].get(m, {}).get("late_mean") for r in runs]) for m in metrics]
        shares = [_share([r["uploads"][who]["share"] for r in runs]) for who in _WHO]
        table.add_row(Text(name), str(len(runs)), *figures, ", ".join(shares))
    Console().print(table)


_WHO = ("honest", "malicious")


def _over(values: Sequence[float | None]) -> str:
    """Mean and standard deviation; neither if a run diverged."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    spread = statistics.stdev(known) if len(known) > 1 else 0.0
    return f"{statistics.fmean(known):.3f}±{spread:.3f}"


def _share(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{statistics.fmean(known):.0%}" if known else "-"
