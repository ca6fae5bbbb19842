"""Time a call by the host's clock, or by the GPU's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

_SECONDS, _FEWEST = 5.0, 3  # what takes longer than this in all is repeated no more often
_BATCH = 10  # calls between two marks on a GPU: a single one would be mostly its launch


class Timing(NamedTuple):
    """The result of one measurement."""

    milliseconds: list[float]  # of one step or call; one entry per sample
    state_bytes: int = 0  # all tensors that survive a step


def attempts(repeats: int) -> Iterator[int]:
    """Count up to `repeats`, or stop earlier once enough time has passed."""
    start = time.perf_counter()
    for number in range(repeats):
        if number >= _FEWEST and time.perf_counter() - start > _SECONDS:
            return
        yield number


def sample(call: Callable[[], object], device: torch.device, repeats: int = 10) -> list[float]:
    """Milliseconds of several calls, after a warm-up call."""
    call()
    if device.type == "cuda":
        return [gpu_milliseconds(call, _BATCH) for _ in attempts(repeats)]
    return [_host_milliseconds(call) for _ in attempts(repeats)]


def gpu_milliseconds(call: Callable[[], object], times: int) -> float:
    """Mean milliseconds of so many calls in a row on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times


def _host_milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
