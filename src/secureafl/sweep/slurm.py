"""Engine `slurm`: cells as Slurm jobs, through submitit.

A job that nears its time limit or is preempted is queued again and goes on from its checkpoint.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError, RunError
from secureafl.experiment import Experiment
from secureafl.sweep.cells import Task, Update, unfinished, why
from secureafl.sweep.cluster import make_groups, run_group, run_jobs, wants_gpu

_JOBS = 64  # in the queue at a time, unless told otherwise
_MINUTES = 240  # for a job; SBATCH_TIMELIMIT goes before
_TIMES = 1000  # a job may reach its limit: each time it has got on


def require_here(_devices: Iterable[str]) -> None:
    """Raise if this is no machine to start jobs from; which devices others have is not known."""
    _executor(Path(), "slurm", threads=1, gpu=False)


def run_cells(
    cells: Mapping[str, Experiment],
    out: Path,
    workers: int,
    checkpoint_seconds: float,
    apart: bool = False,
    cluster: str = "slurm",
) -> Generator[Update, None, None]:
    """Run the cells as `local.run_cells` does, `workers` jobs at a time.

    Jobs outlive this process; told to stop, it cancels them. submitit's files, with what the jobs
    printed, go to `out`/.slurm. `cluster` may be another one of submitit's.
    """
    updates, tasks = unfinished(cells, out)
    folder, threads = out.absolute() / ".slurm", max(1, *(cell.threads for cell in cells.values()))
    yield from updates
    executors = {
        gpu: _executor(folder, cluster, threads, gpu) for gpu in {wants_gpu(task) for task in tasks}
    }

    def submit(group: list[Task]) -> _Job:
        work = _Group(group, checkpoint_seconds, Path.cwd())
        return _Job(executors[wants_gpu(group[0])].submit(work))

    yield from run_jobs(make_groups(tasks, apart), workers or _JOBS, submit)


def _executor(folder: Path, cluster: str, threads: int, gpu: bool) -> Any:
    submitit = _import_submitit()
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=_TIMES)
    except RuntimeError:
        raise ConfigError("engine 'slurm': no Slurm here; start this on its login node") from None
    ask = {"gpus_per_node": 1} if gpu else {}
    executor.update_parameters(name="secureafl", timeout_min=_MINUTES, cpus_per_task=threads, **ask)
    return executor


class _Group:
    """The cells of a job; submitit queues what `checkpoint` returns when the time is up."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __call__(self) -> list[Update]:
        return run_group(*self.parts)

    def checkpoint(self) -> Any:
        return _import_submitit().helpers.DelayedSubmission(self)


class _Job:
    def __init__(self, job: Any) -> None:
        self._job = job

    def done(self) -> bool:
        return self._job.done()

    def updates(self) -> list[Update]:
        error = self._job.exception()
        if error is None:
            return self._job.result()
        raise RunError(f"{why(error)[:200]} … see {self._job.paths.stderr}")

    def cancel(self) -> None:
        self._job.cancel(check=False)


@functools.cache
def _import_submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError:
        remedy = 'install it with: pip install "secureafl[slurm]"'
        raise ConfigError(f"engine 'slurm' needs submitit; {remedy}") from None
