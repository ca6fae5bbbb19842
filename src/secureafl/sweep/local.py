"""Experiments side by side on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import SecureAflError
from secureafl.core.events import Event
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.results import RESULT
from secureafl.simulation.recording import Recording, open_run, require_same
from secureafl.simulation.simulator import choose_device
from secureafl.sweep.tally import Standing

_REPORT_SECONDS = 0.5

Task = tuple[str, dict[str, Any], Path]  # a cell's name, experiment and folder


class Update(NamedTuple):
    """News of one cell."""

    cell: str
    standing: Standing
    state: str  # "running", "finished", "stopped" or "failed"
    message: str = ""  # why it failed


def run_cells(
    cells: Mapping[str, Experiment], out: Path, workers: int, checkpoint_seconds: float
) -> Iterator[Update]:
    """Run each cell in the folder `out`/its name; go on with those begun, skip those finished.

    `workers` run at a time: each in a process of its own or, on a GPU, by turns in one process,
    which keeps the GPU busy as several processes would not. One cell that fails does not stop the
    others. Closing the iterator stops the workers; each cell saves a checkpoint first.
    """
    waiting: list[Task] = []
    for cell, experiment in cells.items():
        if (out / cell / RESULT).is_file():
            yield _finished_before(cell, experiment, out / cell)
        else:
            waiting.append((cell, to_mapping(experiment), out / cell))
    on_gpu = any(_uses_gpu(experiment) for experiment in cells.values())
    groups = [waiting] if on_gpu and waiting else [[task] for task in waiting]
    running: dict[Any, _Worker] = {}  # where its news come from -> worker
    try:
        while groups or running:
            while groups and len(running) < workers:
                together = workers if on_gpu else 1
                news, worker = _start(groups.pop(0), together, checkpoint_seconds)
                running[news] = worker
            yield from _next_news(running)
    finally:
        _stop(running)


class _Worker(NamedTuple):
    process: Any
    cells: set[str]  # that have not ended


def _start(group: list[Task], together: int, checkpoint_seconds: float) -> tuple[Any, _Worker]:
    """A process for some cells, with a pipe of its own: one that is killed blocks no other."""
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    news, sender = spawn.Pipe(duplex=False)
    task = (group, together, checkpoint_seconds, sender)
    process = spawn.Process(target=_work, args=task, daemon=True)
    process.start()
    sender.close()
    return news, _Worker(process, {cell for cell, *_ in group})


def _uses_gpu(experiment: Experiment) -> bool:
    return choose_device(experiment.device).type == "cuda"


def _finished_before(cell: str, experiment: Experiment, path: Path) -> Update:
    try:
        require_same(experiment, path)
    except SecureAflError as error:
        return Update(cell, Standing(), "failed", str(error))
    return Update(cell, Standing(round=experiment.rounds), "finished")


def _next_news(running: dict[Any, _Worker]) -> Iterator[Update]:
    """What has come in, with a word for each cell whose process died without one."""
    ready: list[Any] = wait(list(running), timeout=1.0)
    for news in ready:
        try:
            update = news.recv()
        except EOFError:
            process, cells = running.pop(news)
            process.join()
            for cell in sorted(cells):
                message = f"its process ended with code {process.exitcode}"
                yield Update(cell, Standing(), "failed", message)
            continue
        if update.state != "running":
            running[news].cells.discard(update.cell)
        yield update


def _stop(running: Mapping[Any, _Worker]) -> None:
    for worker in running.values():
        worker.process.terminate()
    for worker in running.values():
        worker.process.join()


def _work(tasks: list[Task], together: int, checkpoint_seconds: float, news: Any) -> None:
    """Body of a worker process: some cells at a time, by turns."""
    waiting, active, parent = list(tasks), [], os.getppid()
    with stop_signals() as told_to_stop:
        while (waiting or active) and not told_to_stop:
            while waiting and len(active) < together:
                active.append(_Cell(*waiting.pop(0), checkpoint_seconds, news))
            active = [cell for cell in active if cell.turn()]
            if os.getppid() != parent:  # killed: nobody is left to run for
                break
        for cell in active:
            cell.stop()


class _Cell:
    """One run among those of a process."""

    def __init__(
        self, name: str, experiment: Any, path: Path, checkpoint_seconds: float, news: Any
    ) -> None:
        self._name, self._news = name, news
        self._standing, self._told = Standing(), 0.0
        self._turns: Generator[list[Event], None, None] | None = None
        self._open = lambda: open_run(from_mapping(experiment), path, checkpoint_seconds).turns()

    def turn(self) -> bool:
        """Go on a little; False when the run has ended, one way or another."""
        try:
            self._turns = self._turns or self._open()
            for event in next(self._turns):
                self._standing = self._standing.after(event)
        except StopIteration:
            return self._tell("finished")
        except SecureAflError as error:
            return self._tell("failed", str(error))
        except Exception as error:
            return self._tell("failed", f"{type(error).__name__}: {error}")
        if time.monotonic() - self._told >= _REPORT_SECONDS:
            self._tell("running")
            self._told = time.monotonic()
        return True

    def stop(self) -> None:
        """Save a checkpoint and leave."""
        if self._turns:
            self._turns.close()
        self._tell("stopped")

    def _tell(self, state: str, message: str = "") -> bool:
        with contextlib.suppress(OSError):  # nobody is left to tell
            self._news.send(Update(self._name, self._standing, state, message))
        return state == "running"


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


def until_stopped(recording: Recording) -> Iterator[Event]:
    """Events of a run until it ends or the process is told to stop; then a checkpoint is saved."""
    turns = recording.turns()
    with stop_signals() as told:
        try:
            for events in turns:
                yield from events
                if told:
                    break
        finally:
            turns.close()


def default_workers(device: str) -> int:
    """A process per core; on a GPU as many runs by turns as keep it busy."""
    return 16 if choose_device(device).type == "cuda" else os.cpu_count() or 1
