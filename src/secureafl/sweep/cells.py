"""The cells of a grid: which are left to run, and how one runs and reports its progress."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import LockedError, RunError, SecureAflError
from secureafl.core.events import Event
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.runs.layout import RESULT, is_run
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
    """How far a cell is, or how it ended."""

    cell: str
    progress: RunProgress
    state: str  # "running", "finished", "stopped", "failed"; "waiting": it failed, once more then
    message: str = ""  # why it failed


def unfinished(cells: Mapping[str, Experiment], out: Path) -> tuple[list[Update], list[Task]]:
    """Split cells into updates of those finished before, in `out`, and tasks for the others."""
    updates, tasks = [], []
    for cell, experiment in cells.items():
        path = out.absolute() / cell
        if (path / RESULT).is_file():
            updates.append(_finished_before(cell, experiment, path))
        else:
            tasks.append(Task(cell, to_mapping(experiment), path))
    return updates, tasks


def _finished_before(cell: str, experiment: Experiment, path: Path) -> Update:
    try:
        require_same(experiment, path)
    except SecureAflError as error:
        return Update(cell, RunProgress(), "failed", str(error))
    return Update(cell, RunProgress(round=experiment.rounds), "finished")


class Supply:
    """The cells of a sweep for an engine, of which there may be more while it runs."""

    def __init__(self, cells: Mapping[str, Experiment], out: Path) -> None:
        """`cells` is looked at again each time."""
        self._cells, self._out, self._seen = cells, out, set[str]()

    def new(self) -> tuple[list[Update], list[Task]]:
        """What has come since the last time: updates of what was finished before, and tasks."""
        fresh = {name: self._cells[name] for name in [*self._cells] if name not in self._seen}
        self._seen |= fresh.keys()
        return unfinished(fresh, self._out)


class RunningCell:
    """A run that shares its process with others; its updates go to `tell`."""

    def __init__(
        self, task: Task, checkpoint_seconds: float, tell: Callable[[Update], object]
    ) -> None:
        self._name, self._tell_others = task.cell, tell
        self._progress, self._told = RunProgress(), 0.0
        self._turns = _turns(task, checkpoint_seconds)

    def turn(self) -> bool:
        """Advance the run by one turn; return False when it has ended, successfully or not."""
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
        """Save a checkpoint and end the run."""
        self._turns.close()
        self._tell("stopped")

    def _tell(self, state: str, message: str = "") -> bool:
        self._tell_others(Update(self._name, self._progress, state, message))
        return state == "running"


def _turns(task: Task, checkpoint_seconds: float) -> Generator[list[Event], None, None]:
    """Yield the events of each turn; none while a process of a killed sweep holds the lock."""
    experiment = from_mapping(task.experiment)
    while not (task.path / RESULT).is_file():
        begun = is_run(task.path)
        try:
            recording = open_run(experiment, task.path, checkpoint_seconds)
        except LockedError:
            yield from _pause(_LOCKED_SECONDS)
        except RunError:
            if begun or not is_run(task.path):
                raise
            yield from _pause(_LOCKED_SECONDS)  # another sweep has begun it at the same moment
        else:
            yield from recording.turns()


def _pause(seconds: float) -> Iterator[list[Event]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)  # short: other runs of the process have turns as well
        yield []


def why(error: Exception) -> str:
    """Describe an error in one line."""
    ours = isinstance(error, SecureAflError)
    return " ".join((str(error) if ours else f"{type(error).__name__}: {error}").split())


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect signals to stop in the list that is yielded, instead of ending the process."""
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
