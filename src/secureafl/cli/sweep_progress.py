"""Progress of a sweep: one line or bar for all of it, and bars for the cells that run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from secureafl.cli.progress import Silent, metrics_words
from secureafl.sweep.cells import Update

_LINE_SECONDS = 5.0
_ROWS = 16  # running cells that get a bar


def make_sweep_display(rounds: Mapping[str, int], quiet: bool) -> Quietly | SweepLines | SweepBars:
    """The display that fits: `rounds` of each cell by name."""
    console = Console(stderr=True)
    if quiet:
        return Quietly(console)
    return SweepBars(console, rounds) if console.is_terminal else SweepLines(console, rounds)


class Count:
    """How far a sweep is."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self._rounds = rounds
        self._states: dict[str, str] = {}
        self._now: dict[str, int] = {}
        self._first: dict[str, int] = {}  # where a cell stood when it was first heard of
        self._began = 0.0

    def add(self, update: Update) -> None:
        """Take in news of a cell."""
        cell, ended = update.cell, update.state in ("finished", "failed")
        self._states[cell] = update.state
        self._now[cell] = self._rounds[cell] if ended else update.progress.round
        self._first.setdefault(cell, self._now[cell])
        if update.state == "running" and not self._began:
            self._began = time.monotonic()

    @property
    def rounds(self) -> int:
        """Rounds done, in all cells; those that failed for good have none left to do."""
        return sum(self._now.values())

    def words(self) -> str:
        """Cells done, failed and running, and the time left."""
        states = Counter(self._states.values())
        parts = [
            f"{states['finished']}/{len(self._rounds)} cells done",
            f"{states['failed']} failed",
        ]
        if states["running"]:
            parts.append(f"{states['running']} running")
        return ", ".join([*parts, *self._time_left()])

    def _time_left(self) -> list[str]:
        done = self.rounds - sum(self._first.values())
        left = sum(self._rounds.values()) - self.rounds
        if not self._began or done <= 0 or not left:
            return []
        seconds = int((time.monotonic() - self._began) * left / done)
        return [f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"]


class Quietly(Silent):
    """Nothing but notes of failures."""

    def tell(self, update: Update) -> None:
        """Take in news of a cell."""


class SweepLines(Quietly):
    """A line about all cells every few seconds."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        super().__init__(console)
        self._count, self._told = Count(rounds), time.monotonic()

    def tell(self, update: Update) -> None:
        """Print a line if it is time."""
        self._count.add(update)
        if time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            self.note(self._count.words())

    def __exit__(self, *_: object) -> None:
        self.note(self._count.words())


class SweepBars:
    """A bar for all cells, and one for each that runs."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        self._rounds, self._count = rounds, Count(rounds)
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self._all = self._progress.add_task("", total=sum(rounds.values()))
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> SweepBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, update: Update) -> None:
        """Move the bars."""
        self._count.add(update)
        self._progress.update(
            self._all, completed=self._count.rounds, description=self._count.words()
        )
        cell = update.cell
        if update.state != "running":
            if cell in self._rows:
                self._progress.remove_task(self._rows.pop(cell))
            return
        if cell not in self._rows and len(self._rows) < _ROWS:
            self._rows[cell] = self._progress.add_task(cell, total=self._rounds[cell])
        if cell in self._rows:
            words = f"{cell}  {metrics_words(update.progress)}"
            done = update.progress.round
            self._progress.update(self._rows[cell], completed=done, description=words)

    def note(self, text: str) -> None:
        """Print above the bars."""
        self._progress.console.print(Text(text))
