"""The results of a benchmark: bench.json and bench.png.

    schema        1; changes when a field changes its meaning
    finished      false after an interrupt: later measurements are missing
    date          UTC, when it began
    command       the command line
    seed          of all random numbers
    threads       torch may use on the CPU
    kernels       {asked, used}: the versions of the hot operations (`kernels.dispatch`)
    device        {type, name}: where the steps ran
    machine       {system, architecture, processor, cpus, memory_bytes}
    versions      {python, secureafl, torch, numpy, ...}: of what is installed
    bandwidth     {read, copy, buffer_bytes, device}: bytes per second, at best; a copy counts
                  what it reads and what it writes
    main          {clients, parameters, buffer}: the case all others are varied from
    rows          one per measurement (`Row`)
    skipped       [{method, clients, parameters, buffer, replicas, reason}]
    paper         {hardware, memory_bytes, rows: [{method, clients, parameters, milliseconds}]}

A value that does not apply is null.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.bench.cases import Case
from secureafl.bench.jobs import Job, Measured, Skipped
from secureafl.bench.machine import Bandwidth
from secureafl.core.errors import RunError
from secureafl.core.files import put_file

SCHEMA = 1
FILE, PICTURE = "bench.json", "bench.png"


class Row(NamedTuple):
    """One measurement."""

    method: str
    clients: int
    parameters: int
    buffer: int | None  # stored pairs; None where nothing depends on it
    replicas: int  # servers that took turns on one GPU
    device: str  # cpu or cuda
    milliseconds: float  # of one arrival at one server (or one median), the middle of the samples
    fastest: float
    slowest: float
    samples: int
    floor_milliseconds: float | None  # to read or write what a step has to, at this bandwidth
    times_floor: float | None
    times_faster_than_plain: float | None  # than the yardstick: plain torch, in the same case
    state_bytes: int  # all tensors that survive an arrival
    peak_bytes: int  # most that was held at a time: by torch on a GPU, else by the process


def make_rows(done: Sequence[Measured], bandwidth: Bandwidth, main: Case) -> list[Row]:
    """Measurements together with the figures they are compared with."""
    middles = {_key(one.job): statistics.median(one.timing.milliseconds) for one in done}
    return [_row(one, bandwidth, middles.get(_yardstick(one.job, main))) for one in done]


def _row(one: Measured, bandwidth: Bandwidth, yardstick: float | None) -> Row:
    job, times = one.job, one.timing.milliseconds
    taken, floor = statistics.median(times), _floor(job, bandwidth)
    return Row(
        job.method,
        *job.case,
        job.replicas,
        job.device.type,
        taken,
        min(times),
        max(times),
        len(times),
        floor,
        taken / floor if floor else None,
        yardstick / taken if yardstick else None,
        one.timing.state_bytes,
        one.peak_bytes,
    )


def _floor(job: Job, bandwidth: Bandwidth) -> float | None:
    if job.floor_bytes is None or job.device.type != bandwidth.device:
        return None  # it stores no vectors, or it ran where no bandwidth was measured
    return 1e3 * job.floor_bytes / bandwidth.read


class _Key(NamedTuple):
    """The key that identifies a measurement."""

    method: str
    case: Case
    device: str
    replicas: int


def _key(job: Job) -> _Key:
    return _Key(job.method, job.case, job.device.type, job.replicas)


def _yardstick(job: Job, main: Case) -> _Key:
    """The baseline's key on the same device; it has a buffer even where the method has none."""
    case = job.case
    if job.yardstick == "plain" and case.buffer is None:
        case = case._replace(buffer=main.buffer)
    return _Key(job.yardstick, case, job.device.type, replicas=1)


def skipped_as_json(skipped: Sequence[Skipped]) -> list[dict[str, Any]]:
    """The jobs that were not measured, and why."""
    return [
        {
            "method": job.method,
            **job.case._asdict(),
            "replicas": job.replicas,
            "reason": reason,
        }
        for job, reason in skipped
    ]


def open_folder(path: Path) -> None:
    """Create the folder before measuring, so that no measurement is lost."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{FILE}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); choose another folder (out)"
        ) from error


def write(path: Path, report: dict[str, Any], picture: bytes) -> None:
    """Write both files; those of an earlier benchmark are replaced."""
    text = json.dumps(report, indent=1, allow_nan=False)
    for name, content in ((FILE, text.encode()), (PICTURE, picture)):
        try:
            put_file(path / name, content)
        except OSError as error:
            raise RunError(f"{path / name}: cannot be written ({error.strerror})") from error
