"""Engine `local`: cells in processes of this machine."""

from __future__ import annotations

import contextlib
import contextvars
import multiprocessing
import os
import select
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from secureafl.core.errors import DataError, SecureAflError
from secureafl.core.events import Event
from secureafl.experiment import Experiment, to_mapping
from secureafl.runtime.devices import choose_device
from secureafl.runtime.loading import shared_data
from secureafl.settings import short_name
from secureafl.simulation.run import Recording
from secureafl.sweep.cells import RunningCell, Supply, Task, Update, stop_signals, why
from secureafl.sweep.sharing import shared_gpu
from secureafl.sweep.tally import RunProgress

_PROCESS_BYTES = 4 << 30  # of a GPU's memory, for each process and its cells


class _Worker(NamedTuple):
    process: Any
    cells: set[str]  # dealt to it, and not ended


class _Processes:
    """Workers, and the MPS daemon by which they share a GPU, until they are closed."""

    def __init__(self) -> None:
        self.running: dict[Any, _Worker] = {}  # line to it -> worker
        self._shared: bool | None = None
        self._daemon = contextlib.ExitStack()

    def share_gpu(self) -> bool:
        """Whether those started from now on share it."""
        if self._shared is None:
            self._shared = self._daemon.enter_context(shared_gpu())
        return self._shared

    def close(self) -> None:
        """Workers first: each saves its cells by the daemon's help."""
        _stop(self.running)
        self._daemon.close()


_KEPT: contextvars.ContextVar[_Processes | None] = contextvars.ContextVar("kept", default=None)


@contextlib.contextmanager
def kept_processes() -> Iterator[None]:
    """Sweeps inside, one after the other, use the same processes: to start one takes seconds.

    All with the same `checkpoint_seconds`.
    """
    with contextlib.closing(_Processes()) as processes:
        before = _KEPT.set(processes)
        try:
            yield
        finally:
            _KEPT.reset(before)


def require_here(devices: Iterable[str]) -> None:
    """Raise if this machine lacks one of the devices."""
    for device in devices:
        choose_device(device)


def require_data(cells: Iterable[Experiment]) -> None:
    """Raise if the data of one of them cannot be loaded; it is not kept."""
    for task in {repr(to_mapping(cell)["task"]): cell.task for cell in cells}.values():
        try:
            task.load()
        except SecureAflError:
            raise
        except Exception as error:  # of a task of the user's own
            raise DataError(
                f"{short_name(task)}: its data cannot be loaded ({why(error)})"
            ) from error


def run_cells(
    cells: Mapping[str, Experiment],
    out: Path,
    workers: int,
    checkpoint_seconds: float,
    apart: bool = False,
) -> Generator[Update, None, None]:
    """Run each cell in the folder `out`/its name; go on with those begun, skip those finished.

    `workers` run at a time (0: as many as fit): each in a process or, on a GPU, by turns in a few
    processes, because one alone cannot keep a GPU busy; `apart` forbids that. Who has ended a cell
    gets the next, also of those that are added to `cells` after an update. One cell that fails does
    not stop the others. Closing the iterator stops the workers; each cell saves a checkpoint first.
    """
    supply = Supply(cells, out)
    updates, waiting = supply.new()
    on_gpu = any(_uses_gpu(experiment) for experiment in cells.values())
    workers = workers or max(default_workers(cell.device) for cell in cells.values())
    yield from updates
    kept = _KEPT.get()
    with contextlib.nullcontext(kept) if kept else contextlib.closing(_Processes()) as crew:
        shared = crew.share_gpu() if on_gpu and waiting else False
        processes = min(workers, _gpu_processes(shared)) if on_gpu else workers
        at_a_time = processes if apart else workers
        given = (supply, waiting, crew.running, at_a_time, processes, checkpoint_seconds)
        yield from _carry_out(*given)


def _carry_out(
    supply: Supply,
    waiting: list[Task],
    running: dict[Any, _Worker],
    workers: int,
    processes: int,
    checkpoint_seconds: float,
) -> Generator[Update, None, None]:
    """Run `workers` cells at a time, in `processes` processes; all are there afterwards or none."""
    try:
        while waiting or any(worker.cells for worker in running.values()):
            while waiting and sum(len(worker.cells) for worker in running.values()) < workers:
                if len(running) < processes:
                    _start(running, checkpoint_seconds)
                _deal(waiting.pop(0), running)
            yield from _next_updates(running)
            updates, more = supply.new()
            waiting += more
            yield from updates
    except BaseException:
        _stop(running)
        raise


def _start(running: dict[Any, _Worker], checkpoint_seconds: float) -> None:
    """Start one more process, with a pipe of its own: one that is killed blocks no other."""
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    line, far_end = spawn.Pipe()
    process = spawn.Process(target=_work, args=(checkpoint_seconds, far_end), daemon=True)
    with _without_main():
        process.start()
    far_end.close()
    running[line] = _Worker(process, set())


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Processes started inside do not run the user's script once more before their work."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


def _deal(task: Task, running: Mapping[Any, _Worker]) -> None:
    """Give the cell to the process that has the fewest."""
    line, worker = min(running.items(), key=lambda item: len(item[1].cells))
    worker.cells.add(task.cell)
    with contextlib.suppress(OSError):  # it has died; that is noticed with the next updates
        line.send(task)


def _next_updates(running: dict[Any, _Worker]) -> Iterator[Update]:
    """Yield the updates that have come in; the cells of a process that died have failed."""
    ready: list[Any] = wait(list(running), timeout=1.0)
    for line in ready:
        try:
            update = line.recv()
        except (EOFError, OSError):
            process, cells = running.pop(line)
            process.join()
            for cell in sorted(cells):
                message = f"its process ended with code {process.exitcode}"
                yield Update(cell, RunProgress(), "failed", message)
            continue
        if update.state != "running":
            running[line].cells.discard(update.cell)
        yield update


def _stop(running: dict[Any, _Worker]) -> None:
    for worker in running.values():
        worker.process.terminate()
    for worker in running.values():
        worker.process.join()
    running.clear()


def _work(checkpoint_seconds: float, line: Any) -> None:
    """Run the cells that come in, in turns, until the process is told to stop."""
    active: list[RunningCell] = []
    parent = os.getppid()

    def tell(update: Update) -> None:
        with contextlib.suppress(OSError):  # nobody is left to tell
            line.send(update)

    with stop_signals() as told_to_stop, shared_data():
        while not told_to_stop and os.getppid() == parent:  # else it was killed
            if select.select([line], [], [], 0 if active else 0.5)[0]:
                try:
                    active.append(RunningCell(line.recv(), checkpoint_seconds, tell))
                except (EOFError, OSError):
                    break
            active = [cell for cell in active if cell.turn()]
        for cell in active:
            cell.stop()


def until_stopped(recording: Recording) -> Iterator[Event]:
    """Yield the events of a run; told to stop, save a checkpoint and end."""
    turns = recording.turns()
    with stop_signals() as told:
        try:
            for events in turns:
                yield from events
                if told:
                    break
        finally:
            turns.close()


def _uses_gpu(experiment: Experiment) -> bool:
    return choose_device(experiment.device).type == "cuda"


def default_workers(device: str) -> int:
    """Return one run per core, or on a GPU as many runs as keep it busy."""
    return 32 if choose_device(device).type == "cuda" else os.cpu_count() or 1


def _gpu_processes(shared: bool) -> int:
    """Preparing rounds is the host's work: a core for each process.

    Processes that cannot share the GPU only wait for each other, so a few must do; of those that
    can, each takes some memory there.
    """
    cores = os.cpu_count() or 1
    if not shared:
        return max(1, min(4, cores // 2))
    memory = torch.cuda.get_device_properties(0).total_memory
    return max(1, min(16, cores, memory // _PROCESS_BYTES))
