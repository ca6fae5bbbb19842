"""Progress of one or several runs: bars on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from secureafl.sweep.tally import RunProgress

_LINE_SECONDS = 5.0


def make_display(rounds: dict[str, int], quiet: bool) -> Silent | Lines | Bars:
    """The display that fits: `rounds` of each run by name."""
    console = Console(stderr=True)
    if quiet:
        return Silent(console)
    return Bars(console, rounds) if console.is_terminal else Lines(console, rounds)


class _Pace:
    """Rounds per second and time left, since this session's start."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._first: tuple[float, int] | None = None

    def words(self, now_round: int) -> str:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, now_round)
        since, start = self._first
        rate = (now_round - start) / (now - since) if now > since else 0
        if not rate:
            return "starting"
        left = int((self.total - now_round) / rate)
        return f"{rate:.1f} rounds/s, {left // 60}:{left % 60:02d} left"


def metrics_words(progress: RunProgress) -> str:
    """The last evaluation."""
    known = {k: "none" if v is None else f"{v:.3f}" for k, v in (progress.metrics or {}).items()}
    return "  ".join(f"{name.upper()} {figure}" for name, figure in known.items())


def _figures(progress: RunProgress) -> str:
    metrics = metrics_words(progress)
    return f"{metrics}  accepted {progress.accepted}  rejected {progress.rejected}".strip()


class Silent:
    """Nothing but notes of failures."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, name: str, progress: RunProgress, final: bool = False) -> None:
        """Tell where a run stands."""

    def note(self, text: str) -> None:
        """Say something else, above any bars."""
        self._console.print(Text(text))


class Lines(Silent):
    """A line per run every few seconds."""

    def __init__(self, console: Console, rounds: dict[str, int]) -> None:
        super().__init__(console)
        self._pace = {name: _Pace(total) for name, total in rounds.items()}
        self._told: dict[str, float] = {}

    def show(self, name: str, progress: RunProgress, final: bool = False) -> None:
        """Print a line if it is time."""
        now = time.monotonic()
        if not final and now - self._told.get(name, -_LINE_SECONDS) < _LINE_SECONDS:
            return
        self._told[name] = now
        pace = self._pace[name]
        line = f"{name}: round {progress.round}/{pace.total}  {pace.words(progress.round)}"
        self._console.print(Text(f"{line}  {_figures(progress)}"), soft_wrap=True)


class Bars:
    """A bar per run."""

    def __init__(self, console: Console, rounds: dict[str, int]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            TextColumn("[bold]{task.fields[figures]}"),
            console=console,
        )
        self._pace = {name: _Pace(total) for name, total in rounds.items()}
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=total, pace="waiting", figures="")
            for name, total in rounds.items()
        }

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, name: str, progress: RunProgress, final: bool = False) -> None:
        """Move the run's bar."""
        self._progress.update(
            self._bars[name],
            completed=progress.round,
            pace="done" if final else self._pace[name].words(progress.round),
            figures=_figures(progress),
        )

    def note(self, text: str) -> None:
        """Print above the bars."""
        self._progress.console.print(Text(text))
