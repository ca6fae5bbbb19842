"""Code shared by the engines that submit jobs to other machines; run folders are on shared storage.

A job runs one cell, or on a GPU a few by turns. How far it is shows in its run folders.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from secureafl.core.errors import SecureAflError
from secureafl.core.events import EvaluationEvent
from secureafl.runs.events import last_events
from secureafl.runtime.loading import shared_data
from secureafl.sweep.cells import RunningCell, Task, Update, stop_signals, why
from secureafl.sweep.tally import RunProgress

_LOOK_SECONDS = 1.0
_PER_GPU_JOB = 8  # by turns, more gain little


class Job(Protocol):
    """A job that was submitted to a cluster."""

    def done(self) -> bool:
        """Whether the job has ended, successfully or not."""
        ...

    def updates(self) -> Sequence[Update]:
        """Return how its cells ended; raise if the job was lost."""
        ...

    def cancel(self) -> None:
        """Tell the job to save checkpoints and end."""
        ...


class _Running(NamedTuple):
    job: Job
    tasks: list[Task]
    last_progress: dict[str, RunProgress]


def run_group(tasks: Sequence[Task], checkpoint_seconds: float, folder: Path) -> list[Update]:
    """Run the cells of a job in turns, inside `folder`; return how they ended."""
    os.chdir(folder)
    last: dict[str, Update] = {}
    active = [
        RunningCell(task, checkpoint_seconds, lambda update: last.update({update.cell: update}))
        for task in tasks
    ]
    with stop_signals() as told_to_stop, shared_data():
        while active and not told_to_stop:
            active = [cell for cell in active if cell.turn()]
        for cell in active:
            cell.stop()
    return list(last.values())


def make_groups(tasks: Sequence[Task], apart: bool) -> list[list[Task]]:
    """Group cells into jobs: those that ask for a GPU share some, unless `apart` forbids it."""
    on_gpu = [task for task in tasks if wants_gpu(task)]
    size = 1 if apart else _PER_GPU_JOB
    together = [on_gpu[start : start + size] for start in range(0, len(on_gpu), size)]
    return together + [[task] for task in tasks if not wants_gpu(task)]


def wants_gpu(task: Task) -> bool:
    """Whether a cell asks for a GPU; `auto` does not, it is decided where the job runs."""
    return task.experiment["device"].startswith("cuda")


def run_jobs(
    groups: list[list[Task]], jobs: int, submit: Callable[[list[Task]], Job]
) -> Generator[Update, None, None]:
    """Submit the groups, `jobs` at a time, and yield updates; closing the iterator cancels them."""
    waiting, running = list(groups), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                tasks = waiting.pop(0)
                running.append(_Running(_handed_in(tasks, submit), tasks, {}))
            time.sleep(_LOOK_SECONDS)
            for one in list(running):
                if one.job.done():
                    running.remove(one)
                    yield from _ends(one)
                else:
                    yield from _progress(one)
    finally:
        for one in running:
            one.job.cancel()


def _handed_in(tasks: list[Task], submit: Callable[[list[Task]], Job]) -> Job:
    try:
        return submit(tasks)
    except Exception as error:  # a full queue, say: the cells fail and are tried again later
        return _Refused(error)


class _Refused:
    """A job that the cluster refused."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def updates(self) -> list[Update]:
        raise self._error

    def cancel(self) -> None:
        return None


def _ends(one: _Running) -> Iterator[Update]:
    try:
        updates, reason = {update.cell: update for update in one.job.updates()}, ""
    except Exception as error:  # whatever the cluster says of a job that was lost
        updates, reason = {}, why(error)
    for task in one.tasks:
        progress = one.last_progress.get(task.cell, RunProgress())
        yield updates.get(task.cell, Update(task.cell, progress, "failed", reason))


def _progress(one: _Running) -> Iterator[Update]:
    for task in one.tasks:
        with contextlib.suppress(SecureAflError):  # read while it was written
            before = one.last_progress.get(task.cell, RunProgress())
            one.last_progress[task.cell] = now = _progress_of(task.path, before)
            if now != before:
                yield Update(task.cell, now, "running")


def _progress_of(path: Path, before: RunProgress) -> RunProgress:
    """Read the progress of a run off its last events; accepted uploads are not counted."""
    for event in last_events(path):
        if isinstance(event, EvaluationEvent):
            before = before._replace(metrics=event.metrics)
        else:
            before = before._replace(round=event.round + 1)
    return before
