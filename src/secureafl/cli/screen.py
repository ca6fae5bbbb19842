"""What commands print on the terminal besides progress."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from secureafl.core.errors import RunError
from secureafl.report.tables import Late, compare, read_runs
from secureafl.results import EXPERIMENT

_BARS = "▁▂▃▄▅▆▇█"


def expand(folders: list[Path]) -> list[Path]:
    """Run folders as they are; any other folder by the run folders inside it."""
    runs: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder")
        inside = [folder] if (folder / EXPERIMENT).is_file() else sorted(folder.iterdir())
        found = [path for path in inside if (path / EXPERIMENT).is_file()]
        if not found:
            raise RunError(f"{folder}: neither a run folder nor a folder of them")
        runs += found
    return runs


def list_table(what: str) -> None:
    """Print the table called `what`: name, title, settings."""
    from secureafl import aggregators, arrivals, attacks, defenses, estimators, tasks

    homes: dict[str, Any] = {
        "defenses": defenses.DEFENSES,
        "attacks": attacks.ATTACKS,
        "aggregators": aggregators.AGGREGATORS,
        "estimators": estimators.ESTIMATORS,
        "tasks": tasks.TASKS,
        "partitions": tasks.PARTITIONS,
        "arrivals": arrivals.ARRIVALS,
    }
    table = Table("name", "what it is", "settings", title=what, show_lines=True)
    for name, cls in homes[what].items():
        title = (inspect.getmodule(cls).__doc__ or "").partition("\n")[0]  # pyrefly: ignore
        table.add_row(name, title, _settings(cls))
    Console().print(table)


def _settings(cls: type) -> str:
    default = cls()
    lines = []
    for field in dataclasses.fields(cls):
        value = getattr(default, field.name)
        shown = type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)
        lines.append(f"{field.name} = {shown}")
    return "\n".join(lines)


def sparkline(values: list[float]) -> str:
    """Values as a row of small bars, the largest full."""
    top = max(values, default=0) or 1
    return "".join(_BARS[min(7, int(v / top * 8))] for v in values)


def print_comparison(folders: list[Path]) -> None:
    """One line per run: final figures, how they came about, who was accepted."""
    runs = read_runs(folders)
    console = Console()
    table = Table("defence", "attack", "error, late mean", "ASR", "error over rounds")
    table.add_column("accepted honest", justify="right")
    table.add_column("accepted malicious", justify="right")
    for run, row in zip(runs, compare(runs), strict=True):
        curve = [event.metrics.get(run.metric or "", 0.0) for event in run.evaluations]
        state = "" if row.finished else " (unfinished)"
        table.add_row(
            escape(run.variant + state),
            escape(run.scene),
            _late(row.late),
            _late(row.asr),
            sparkline(_thinned(curve)),
            _share(row.honest),
            _share(row.malicious),
        )
    console.print(table)


def _late(figures: Late | None) -> str:
    return f"{figures.mean:.3f} ± {figures.std:.3f}" if figures else "-"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _thinned(values: list[float]) -> list[float]:
    return values[:: max(1, -(-len(values) // 24))]
