"""Progress of runs: bars on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from secureafl.sweep.cells import Update
from secureafl.sweep.tally import RunProgress

_LINE_SECONDS = 5.0
_ROWS = 16  # runs that get a bar of their own


def make_display(rounds: Mapping[str, int], quiet: bool) -> Silent | Lines | Bars:
    """Return the display that fits the terminal; `rounds` are those of each run, by its name.

    There may be more of these later.
    """
    console = Console(stderr=True)
    if quiet:
        return Silent(console)
    return Bars(console, rounds) if console.is_terminal else Lines(console, rounds)


class Count:
    """How far the runs of a command are, all together."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self._rounds = rounds
        self._latest: dict[str, Update] = {}
        self._first: dict[str, int] = {}  # rounds a run had done before this session
        self._began = 0.0

    def add(self, update: Update) -> None:
        """Take in an update of one run."""
        self._latest[update.cell] = update
        self._first.setdefault(update.cell, self._done(update))
        if update.state == "running" and not self._began:
            self._began = time.monotonic()

    @property
    def rounds(self) -> int:
        """Rounds done, in all runs; those that failed for good have none left to do."""
        return sum(map(self._done, self._latest.values()))

    def describe(self) -> str:
        """Describe one run by its round and figures, several by how many of them are done."""
        if len(self._rounds) > 1:
            return ", ".join([*self._describe_several(), *self._time_left()])
        (name, total), update = *self._rounds.items(), next(iter(self._latest.values()), None)
        progress = update.progress if update else RunProgress()
        parts = ", ".join([f"{name}: round {progress.round}/{total}", *self._time_left()])
        return f"{parts}  {describe_figures(progress)}".rstrip()

    def _describe_several(self) -> list[str]:
        states = Counter(update.state for update in self._latest.values())
        done = f"{states['finished']}/{len(self._rounds)} cells done"
        running = [f"{states['running']} running"] if states["running"] else []
        return [done, f"{states['failed']} failed", *running]

    def _done(self, update: Update) -> int:
        ended = update.state in ("finished", "failed")
        return self._rounds[update.cell] if ended else update.progress.round

    def _time_left(self) -> list[str]:
        """Pace and remaining time, as far as this session shows them."""
        done = self.rounds - sum(self._first.values())
        left = sum(self._rounds.values()) - self.rounds
        elapsed = time.monotonic() - self._began
        if not self._began or done <= 0 or not left or elapsed <= 0:
            return []
        seconds = int(elapsed * left / done)
        clock = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return [f"{done / elapsed:.1f} rounds/s", f"{clock} left"]


def describe_figures(progress: RunProgress) -> str:
    """The metrics of the last evaluation, and how many uploads were accepted."""
    known = {k: "none" if v is None else f"{v:.3f}" for k, v in (progress.metrics or {}).items()}
    figures = [f"{name.upper()} {figure}" for name, figure in known.items()]
    if progress.accepted or progress.rejected:
        figures.append(f"accepted {progress.accepted}  rejected {progress.rejected}")
    return "  ".join(figures)


class Silent:
    """A display of nothing but notes, such as those of failures."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, update: Update) -> None:
        """Take in an update of one run."""

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)


class Lines(Silent):
    """A line every few seconds, about the one run or about all of them."""

    def __init__(self, console: Console, rounds: Mapping[str, int]) -> None:
        super().__init__(console)
        self._count, self._told = Count(rounds), time.monotonic()

    def tell(self, update: Update) -> None:
        """Take in an update of one run; print a line if it is time."""
        self._count.add(update)
        if time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            self.note(self._count.describe())

    def __exit__(self, *_: object) -> None:
        self.note(self._count.describe())


class Bars:
    """A bar for all runs together and, where there are several, one for each that runs."""

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

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, update: Update) -> None:
        """Take in an update of one run, and move the bars."""
        self._count.add(update)
        done, text = self._count.rounds, self._count.describe()
        total = sum(self._rounds.values())
        self._progress.update(self._all, completed=done, total=total, description=text)
        if len(self._rounds) > 1:
            self._move_row(update)

    def _move_row(self, update: Update) -> None:
        cell = update.cell
        if update.state != "running":
            if cell in self._rows:
                self._progress.remove_task(self._rows.pop(cell))
            return
        if cell not in self._rows and len(self._rows) < _ROWS:
            self._rows[cell] = self._progress.add_task(cell, total=self._rounds[cell])
        if cell in self._rows:
            text = f"{cell}  {describe_figures(update.progress)}"
            done = update.progress.round
            self._progress.update(self._rows[cell], completed=done, description=text)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(Text(text))
