"""What commands print on the terminal besides progress."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from secureafl.report.formatting import late_figures, percent
from secureafl.report.tables import Run, compare, read_runs
from secureafl.runs.find import find_runs

if TYPE_CHECKING:
    from secureafl.experiment import Experiment

_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 12  # bars in a sparkline
_ENDLESS = 10_000  # columns of a screen that all fits on


def runs_in(folders: list[Path]) -> list[Path]:
    """The run folders in some folders; what could not be searched is named on standard error."""
    found = find_runs(folders)
    for line in found.unreadable:
        print("note:", *line.split(), file=sys.stderr)
    return found.runs


def print_notes(experiments: Iterable[Experiment]) -> None:
    """Say what is odd about experiments that are going to run."""
    from secureafl.library.notes import notes_before

    for note in notes_before(experiments):
        print(f"note: {note}", file=sys.stderr)


def sparkline(values: list[float]) -> str:
    """Values as a row of small bars, the largest full."""
    top = max(values, default=0) or 1
    return "".join(_BARS[min(7, int(v / top * 8))] for v in values)


def print_comparison(folders: list[Path]) -> None:
    """Print a line per run: mean ± deviation of its late evaluations, and accepted shares."""
    runs = read_runs(folders)
    console = Console()
    table = _comparison(runs, curves=True)
    # Where the screen is too narrow, curves are on the page alone.
    if (
        console.measure(table, options=console.options.update(max_width=_ENDLESS)).maximum
        > console.width
    ):
        table = _comparison(runs, curves=False)
    console.print(table)


def _comparison(runs: list[Run], curves: bool) -> Table:
    rows = compare(runs)
    metric = next((run.metric.upper() for run in runs if run.metric), "error")
    backdoors = any(row.asr for row in rows)
    headings = [metric, *["ASR"] * backdoors, *["over rounds"] * curves]
    columns = [Column(name, overflow="fold", min_width=5) for name in ("defence", "attack")]
    columns += [Column(name, overflow="fold", min_width=5) for name in headings]
    shares = Column("accepted:\nhonest, malicious", justify="right", overflow="fold", min_width=8)
    table = Table(*columns, shares)
    for run, row in zip(runs, rows, strict=True):
        curve = [event.metrics.get(run.metric or "") or 0.0 for event in run.evaluations]
        table.add_row(
            escape(run.variant + ("" if row.finished else " (unfinished)")),
            escape(run.scene),
            late_figures(row.late),
            *[late_figures(row.asr)] * backdoors,
            *[sparkline(_thinned(curve))] * curves,
            f"{percent(row.honest)}, {percent(row.malicious)}",
        )
    return table


def _thinned(values: list[float]) -> list[float]:
    return values[:: max(1, -(-len(values) // _CURVE))]


def clock(seconds: float) -> str:
    """A time for people: 4.2 s, or hours, minutes and seconds."""
    whole = int(seconds)
    clock = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return clock if seconds >= 60 else f"{seconds:.1f} s"
