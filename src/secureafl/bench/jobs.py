"""The measurements of a benchmark, the most important ones first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from secureafl.bench import machine
from secureafl.bench.cases import FLOAT_BYTES, Case, Scope
from secureafl.bench.clock import Timing
from secureafl.bench.graph import time_replayed, time_replicas
from secureafl.bench.host import time_arrivals
from secureafl.bench.peers import PEERS, YARDSTICK, time_peer
from secureafl.bench.plain import time_plain
from secureafl.core.protocols import Defense
from secureafl.defenses import DEFENSES, SecureAfl, TrustClipping
from secureafl.estimators import Lbfgs

# The other defences of the paper's tables that this installation has.
_WITHOUT_MEMORY = [name for name in ("async_sgd", "zeno_pp", "aflguard") if name in DEFENSES]
_REPLICAS = 8
_MOST_OF_FREE = 0.6  # of the memory that is free, for what a job is known to need
# Room beside what is known: temporary vectors of a step; sorted copies and their indices.
_VECTORS_OF_A_STEP, _COPIES_OF_A_MEDIAN = 20, 5
# What trust clipping moves per parameter: for sketches it reads upload, centre, model and a sign of
# one byte; for the step centre and upload once more, and it writes centre and direction.
_CLIPPING_BYTES = (3 * FLOAT_BYTES + 1) + 4 * FLOAT_BYTES
_SKETCHES = 3  # that it keeps of each client


class Job(NamedTuple):
    """One thing to measure."""

    method: str
    case: Case
    device: torch.device
    measure: Callable[[], Timing]
    needed_bytes: int
    floor_bytes: int | None  # read or written at least; None: the method stores no vectors
    yardstick: str = "plain"  # the method it is compared with, in the same case
    replicas: int = 1

    def __str__(self) -> str:
        times = f" x {self.replicas}" if self.replicas > 1 else ""
        return f"{self.method}{times}, {self.case}"


class Measured(NamedTuple):
    """A job with its result."""

    job: Job
    timing: Timing
    peak_bytes: int


class Skipped(NamedTuple):
    """A job that could not be measured, and why."""

    job: Job
    reason: str


def plan(scope: Scope, device: torch.device) -> list[Job]:
    """The main case and the peers first; then what changes with each setting."""
    jobs = [*_steps(scope.main, device), *_peers(scope.main, device)]
    if device.type == "cuda":
        jobs.append(_replicas(scope.main, device))
    for case in scope.other_buffers:
        jobs += _with_memory(case, device)
    for case in scope.other_sizes:
        jobs += _steps(case, device)
    return jobs


def carry_out(job: Job) -> Measured | Skipped:
    """Measure, unless there is too little memory or something is not installed."""
    free = machine.free_memory(job.device)
    if job.needed_bytes > _MOST_OF_FREE * free:
        return Skipped(
            job,
            f"needs {job.needed_bytes / 1e9:,.1f} GB, more than {_MOST_OF_FREE:.0%} of the "
            f"{free / 1e9:,.1f} GB free; free some, or ask for fewer --clients or smaller --sizes",
        )
    machine.reset_peak(job.device)
    try:
        timing = job.measure()
    except ImportError as error:
        return Skipped(job, f"{error.name} is not installed")
    except (MemoryError, torch.OutOfMemoryError):
        return Skipped(job, "memory ran out; ask for fewer --clients or smaller --sizes")
    return Measured(job, timing, machine.peak_memory(job.device))


def _steps(case: Case, device: torch.device) -> list[Job]:
    jobs = _with_memory(case, device)
    case = case._replace(buffer=None)
    needed = _VECTORS_OF_A_STEP * case.parameters * FLOAT_BYTES
    jobs.append(_trust_clipping(case, device, needed))
    for name in _WITHOUT_MEMORY:
        measure = functools.partial(_time_defense, DEFENSES[name](), case, device)
        jobs.append(Job(name, case, device, measure, needed, floor_bytes=None))
    return jobs


def _trust_clipping(case: Case, device: torch.device, of_a_step: int) -> Job:
    defense = TrustClipping()
    measure = functools.partial(_time_defense, defense, case, device)
    numbers = _SKETCHES * min(defense.sketch_size, case.parameters)
    needed = of_a_step + case.clients * numbers * FLOAT_BYTES
    floor = _CLIPPING_BYTES * case.parameters
    return Job("trust_clipping", case, device, measure, needed, floor)


def _with_memory(case: Case, device: torch.device) -> list[Job]:
    needed = case.memory_bytes
    plain = functools.partial(time_plain, case, device)
    ours = functools.partial(_time_defense, _secure_afl(case), case, device)
    return [
        # Estimates, their sorted copy and its indices take as much again as the memory.
        Job("plain", case, device, plain, 2 * needed, floor_bytes=needed),
        Job("secure_afl", case, device, ours, needed, floor_bytes=needed),
    ]


def _replicas(case: Case, device: torch.device) -> Job:
    measure = functools.partial(time_replicas, _secure_afl(case), case, device, _REPLICAS)
    needed, floor = _REPLICAS * case.memory_bytes, case.memory_bytes
    return Job("secure_afl", case, device, measure, needed, floor, replicas=_REPLICAS)


def _peers(case: Case, device: torch.device) -> list[Job]:
    case = case._replace(buffer=None)
    needed, floor = _COPIES_OF_A_MEDIAN * case.values_bytes, case.values_bytes
    jobs = []
    for name, peer in PEERS.items():
        where = torch.device("cpu") if peer.on_host else device
        measure = functools.partial(time_peer, peer, case, where)
        jobs.append(Job(name, case, where, measure, needed, floor, yardstick=YARDSTICK))
    return jobs


def _secure_afl(case: Case) -> SecureAfl:
    assert case.buffer
    return SecureAfl(estimator=Lbfgs(buffer_size=case.buffer))


def _time_defense(defense: Defense, case: Case, device: torch.device) -> Timing:
    if device.type == "cuda":
        return time_replayed(defense, case, device)
    return time_arrivals(defense, case)
