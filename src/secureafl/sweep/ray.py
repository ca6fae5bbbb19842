"""Engine `ray`: cells as tasks of a Ray cluster, or of one that is started on this machine.

Whoever reaches a Ray cluster can run code on it: keep it inside one trust domain.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError, RunError
from secureafl.experiment import Experiment
from secureafl.sweep.cells import Task, Update, unfinished, why
from secureafl.sweep.cluster import make_groups, run_group, run_jobs, wants_gpu

_GPU_SHARE = 0.25  # four processes keep a GPU busy
_LEAVE_SECONDS = 30.0


def require_here(_devices: Iterable[str]) -> None:
    """Raise if Ray is not installed; which devices its machines have is not known here."""
    _import_ray()


def run_cells(
    cells: Mapping[str, Experiment],
    out: Path,
    workers: int,
    checkpoint_seconds: float,
    apart: bool = False,
) -> Generator[Update, None, None]:
    """Run the cells as `local.run_cells` does; without a number of workers, one per core."""
    ray = _import_ray()
    updates, tasks = unfinished(cells, out)
    yield from updates
    if not tasks:
        return
    _join(ray)
    jobs: list[_Job] = []

    def submit(group: list[Task]) -> _Job:
        jobs.append(_Job(ray, group, checkpoint_seconds))
        return jobs[-1]

    at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        yield from run_jobs(make_groups(tasks, apart), at_once, submit)
    finally:
        left = [job.reference for job in jobs if not job.done()]
        if left:  # they save checkpoints
            ray.wait(left, num_returns=len(left), timeout=_LEAVE_SECONDS)


def _join(ray: Any) -> None:
    """Connect to the cluster at RAY_ADDRESS or on this machine; without one, start one here."""
    if ray.is_initialized():
        return
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunError(f"engine 'ray': no cluster to be had ({why(error)})") from None


class _Job:
    def __init__(self, ray: Any, group: list[Task], checkpoint_seconds: float) -> None:
        share = _GPU_SHARE if wants_gpu(group[0]) else 0
        # A lost task is not Ray's to repeat: the sweep tries its cells once more.
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=0)(run_group)
        self._ray, self.reference = ray, task.remote(group, checkpoint_seconds, Path.cwd())

    def done(self) -> bool:
        ready, _ = self._ray.wait([self.reference], timeout=0)
        return bool(ready)

    def updates(self) -> list[Update]:
        return self._ray.get(self.reference)

    def cancel(self) -> None:
        self._ray.cancel(self.reference)


@functools.cache
def _import_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent home; read at import
    try:
        return importlib.import_module("ray")
    except ImportError:
        remedy = 'install it with: pip install "secureafl[ray]"'
        raise ConfigError(f"engine 'ray' needs Ray; {remedy}") from None
