"""Cells of a grid on their way: what is left to run, a run that takes its turns, news of it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import LockedError, SecureAflError
from secureafl.core.events import Event
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.runs.folder import RESULT
from secureafl.runtime.records import require_same
from secureafl.simulation.run import open_run
from secureafl.sweep.tally import RunProgress

_REPORT_SECONDS = 0.5
_LOCKED_SECONDS = 1.0


class Task(NamedTuple):
    """A cell to run."""

    cell: str
    experiment: dict[str, Any]  # as a mapping: plain values travel to any process
    path: Path  # its run folder


class Update(NamedTuple):
    """SecantProducts of one cell."""

    cell: str
    progress: RunProgress
    state: str  # "running", "finished", "stopped", "failed"; "waiting": it failed, once more then
    message: str = ""  # why it failed


def unfinished(cells: Mapping[str, Experiment], out: Path) -> tuple[list[Update], list[Task]]:
    """Updates of the cells that were finished before, and the others, in the folder `out`."""
    news, tasks = [], []
    for cell, experiment in cells.items():
        path = out.absolute() / cell
        if (path / RESULT).is_file():
            news.append(_finished_before(cell, experiment, path))
        else:
            tasks.append(Task(cell, to_mapping(experiment), path))
    return news, tasks


def _finished_before(cell: str, experiment: Experiment, path: Path) -> Update:
    try:
        require_same(experiment, path)
    except SecureAflError as error:
        return Update(cell, RunProgress(), "failed", str(error))
    return Update(cell, RunProgress(round=experiment.rounds), "finished")


class RunningCell:
    """One run among those of a process; `tell` gets the news."""

    def __init__(
        self, task: Task, checkpoint_seconds: float, tell: Callable[[Update], object]
    ) -> None:
        self._name, self._tell_others = task.cell, tell
        self._progress, self._told = RunProgress(), 0.0
        self._turns = _turns(task, checkpoint_seconds)

    def turn(self) -> bool:
        """Go on a little; False when the run has ended, one way or another."""
        try:
            for event in next(self._turns):
                self._progress = self._progress.after(event)
        except StopIteration:
            return self._tell("finished")
        except Exception as error:
            return self._tell("failed", why(error))
        if time.monotonic() - self._told >= _REPORT_SECONDS:
            self._tell("running")
            self._told = time.monotonic()
        return True

    def stop(self) -> None:
        """Save a checkpoint and leave."""
        self._turns.close()
        self._tell("stopped")

    def _tell(self, state: str, message: str = "") -> bool:
        self._tell_others(Update(self._name, self._progress, state, message))
        return state == "running"


def _turns(task: Task, checkpoint_seconds: float) -> Generator[list[Event], None, None]:
    """A run's turns; without events while another process, of a killed sweep perhaps, is at it."""
    experiment = from_mapping(task.experiment)
    while not (task.path / RESULT).is_file():
        try:
            recording = open_run(experiment, task.path, checkpoint_seconds)
        except LockedError:
            yield from _pause(_LOCKED_SECONDS)
        else:
            yield from recording.turns()


def _pause(seconds: float) -> Iterator[list[Event]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)  # short: other runs of the process have turns as well
        yield []


def why(error: Exception) -> str:
    """An error as one line."""
    ours = isinstance(error, SecureAflError)
    return " ".join((str(error) if ours else f"{type(error).__name__}: {error}").split())


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Inside, being told to stop only fills the list."""
    told: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: told.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
