"""Experiments side by side on this machine, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import SecureAflError
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.results import RESULT
from secureafl.simulation.recording import Recording, open_run, require_same
from secureafl.sweep.tally import Standing

_REPORT_SECONDS = 0.5


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

    One cell that fails does not stop the others. Closing the iterator stops the workers, each of
    which saves a checkpoint first.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    news: Any = spawn.Queue()
    waiting = list(cells)
    running: dict[str, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                cell = waiting.pop(0)
                if (out / cell / RESULT).is_file():
                    yield _finished_before(cell, cells[cell], out / cell)
                    continue
                task = (cell, to_mapping(cells[cell]), out / cell, checkpoint_seconds, news)
                running[cell] = spawn.Process(target=_work, args=task, daemon=True)
                running[cell].start()
            yield from _next_news(news, running)
    finally:
        _stop(running)


def _finished_before(cell: str, experiment: Experiment, path: Path) -> Update:
    try:
        require_same(experiment, path)
    except SecureAflError as error:
        return Update(cell, Standing(), "failed", str(error))
    return Update(cell, Standing(round=experiment.rounds), "finished")


def _next_news(news: Any, running: dict[str, Any]) -> Iterator[Update]:
    """The next update, or one for each worker that died without a word."""
    try:
        update = news.get(timeout=1.0)
    except queue.Empty:
        dead = [cell for cell, process in running.items() if not process.is_alive()]
        for cell in dead:
            code = running.pop(cell).exitcode
            yield Update(cell, Standing(), "failed", f"its process ended with code {code}")
        return
    if update.state != "running" and update.cell in running:
        running.pop(update.cell).join()
    yield update


def _stop(running: Mapping[str, Any]) -> None:
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.join()


def _work(
    cell: str, experiment: dict[str, Any], path: Path, checkpoint_seconds: float, news: Any
) -> None:
    """Body of a worker process."""
    standing, state, message = Standing(), "failed", ""
    try:
        recording = open_run(from_mapping(experiment), path, checkpoint_seconds)
        told, parent = 0.0, os.getppid()
        for event in until_stopped(recording):
            standing = standing.after(event)
            if time.monotonic() - told >= _REPORT_SECONDS:
                news.put(Update(cell, standing, "running"))
                told = time.monotonic()
                if os.getppid() != parent:  # killed: nobody is left to run for
                    os.kill(os.getpid(), signal.SIGTERM)
        state = "finished" if recording.simulation.finished else "stopped"
    except SecureAflError as error:
        message = str(error)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    news.put(Update(cell, standing, state, message))


def until_stopped(recording: Recording) -> Iterator[Any]:
    """Events of a run until it ends or the process is told to stop; then a checkpoint is saved."""
    told_to_stop: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: told_to_stop.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    events = iter(recording)
    try:
        for event in events:
            yield event
            if told_to_stop:
                break
    finally:
        events.close()  # pyrefly: ignore  (a generator: this is where the checkpoint is saved)
        for number, handler in before.items():
            signal.signal(number, handler)


def default_workers() -> int:
    """One process per core; on a GPU they share it."""
    return os.cpu_count() or 1
