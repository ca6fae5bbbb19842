"""What commands print on the terminal besides progress."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from secureafl.core.errors import RunError
from secureafl.report.formatting import NOTHING, mean_and_deviation, percent
from secureafl.report.tables import Late, compare, read_runs
from secureafl.runs.folder import EXPERIMENT

_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 12  # bars in a sparkline


def expand(folders: list[Path]) -> list[Path]:
    """Run folders as they are; any other folder by the run folders inside it."""
    runs: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder")
        # A name with a dot is a folder that was being made when its process was killed.
        there = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        inside = [folder] if (folder / EXPERIMENT).is_file() else there
        found = [path for path in inside if (path / EXPERIMENT).is_file()]
        if not found:
            raise RunError(f"{folder}: neither a run folder nor a folder of them")
        runs += found
    return runs


def sparkline(values: list[float]) -> str:
    """Values as a row of small bars, the largest full."""
    top = max(values, default=0) or 1
    return "".join(_BARS[min(7, int(v / top * 8))] for v in values)


def print_comparison(folders: list[Path]) -> None:
    """One line per run: figures (mean ± std of the late evaluations) and who was accepted."""
    runs = read_runs(folders)
    rows = compare(runs)
    metric = next((run.metric.upper() for run in runs if run.metric), "error")
    backdoors = any(row.asr for row in rows)
    table = Table(Column("defence", overflow="fold"), "attack")  # whole names, whatever the width
    for heading in (metric, *(["ASR"] if backdoors else []), "over rounds"):
        table.add_column(heading, no_wrap=True)
    table.add_column("accepted:\nhonest, malicious", justify="right")
    for run, row in zip(runs, rows, strict=True):
        curve = [event.metrics.get(run.metric or "") or 0.0 for event in run.evaluations]
        table.add_row(
            escape(run.variant + ("" if row.finished else " (unfinished)")),
            escape(run.scene),
            _late(row.late),
            *([_late(row.asr)] if backdoors else []),
            sparkline(_thinned(curve)),
            f"{percent(row.honest)}, {percent(row.malicious)}",
        )
    Console().print(table)


def _late(figures: Late | None) -> str:
    return mean_and_deviation(figures.mean, figures.std) if figures else NOTHING


def _thinned(values: list[float]) -> list[float]:
    return values[:: max(1, -(-len(values) // _CURVE))]
