"""`secureafl clients`: an operator's view of who takes part in a served run."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from secureafl.deployment.overview import Overview

EXAMPLE = "Example: secureafl clients runs/real --follow"
_SECONDS = 2.0
_LINES_SECONDS = 15.0  # between two tables where no terminal can redraw them
_COLOURS = {"in": "green", "slowed": "yellow", "not counted": "red", "silent": "yellow"}


def clients(
    run: Annotated[Path, typer.Argument(help="Run folder of a server.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Show it again and again until the run ends.")
    ] = False,
) -> None:
    """Show who takes part in a served run, who is slowed or not counted, and why."""
    from rich.console import Console

    from secureafl.deployment.overview import make_overview
    from secureafl.runs.folder import require_kind
    from secureafl.runs.layout import require_run

    require_run(run)
    require_kind(run, deployed=True)
    if follow:
        _follow(run)
    else:
        Console().print(_render(run, make_overview(run, time.time())))


def _follow(run: Path) -> None:
    from rich.console import Console
    from rich.live import Live

    from secureafl.deployment.overview import make_overview
    from secureafl.runs.layout import RESULT

    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    told, last = 0.0, None
    with live or contextlib.nullcontext():
        while True:
            ended = (run / RESULT).is_file()
            found = make_overview(run, time.time())
            news = (found.round, [row.state for row in found.rows])
            if live:
                live.update(_render(run, found), refresh=True)
            elif ended or (news != last and time.monotonic() - told > _LINES_SECONDS):
                console.print(_render(run, found))
                told, last = time.monotonic(), news
            if ended:
                return
            time.sleep(_SECONDS)


def _render(run: Path, found: Overview) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Column, Table

    columns = [Column(name, no_wrap=True) for name in ("client", "state")]
    numbers = ("slot", "accepted", "weight", "last")
    columns += [Column(name, justify="right", no_wrap=True) for name in numbers]
    table = Table(*columns, "why", box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = _headline(run, found)
    for row in found.rows:
        colour = _COLOURS.get(row.state, "dim")
        table.add_row(
            escape(row.name),
            f"[{colour}]{row.state}[/]",
            "" if row.client is None else str(row.client),
            f"{row.accepted} of {row.uploads}" if row.uploads else "",
            "" if row.weight is None else f"{row.weight:.2f}",
            "" if row.seconds is None else f"{row.seconds:.0f} s",
            escape(row.why),
        )
    return table


def _headline(run: Path, found: Overview) -> str:
    from secureafl.deployment.liveness import is_served
    from secureafl.runs.events import last_evaluation

    evaluation = last_evaluation(run)
    metrics = evaluation.metrics.items() if evaluation else ()
    figures = [f"{k.upper()} {'none' if v is None else f'{v:.3f}'}" for k, v in metrics]
    states = ", ".join(f"{count} {state}" for state, count in found.counts().items())
    parts = [*figures, states or "no clients yet", *filter(None, [found.standstill])]
    if not found.rounds:
        return "; ".join(["the server is starting" if is_served(run) else "no server yet", *parts])
    if found.finished:
        parts.append("finished")
    elif not is_served(run):
        parts.append("no server is at work: this is what the last one saw")
    return "; ".join([f"round {found.round} of {found.rounds}", *parts])
