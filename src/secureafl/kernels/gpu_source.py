"""What every kernel for a GPU needs: to be compiled, by what torch brings along, and launched."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

ONE_CLIENT = 256  # threads of a block of a kernel that works on one client


@functools.cache
def compiled(file: str, name: str, numbers: tuple[tuple[str, Any], ...], *lines: str) -> Any:
    """A kernel of that file, compiled with these numbers and lines before it."""
    folder = files("secureafl.kernels")
    given = [f"#define {key} {value}" for key, value in (("ONE_CLIENT", ONE_CLIENT), *numbers)]
    parts = [folder.joinpath(part).read_text() for part in ("gpu_sums.cu", file)]
    return torch.cuda._compile_kernel("\n".join([*given, *lines, *parts]), name)


def blocks_for(size: int, device: torch.device) -> int:
    """Enough for all coordinates, and no more than run at a time."""
    return min(-(-size // (4 * ONE_CLIENT)), 2 * processors(device)) or 1


@functools.cache
def processors(device: torch.device) -> int:
    """Of the GPU: how many of its blocks surely run side by side."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def counter_for(device: torch.device) -> Tensor:
    """Of blocks that are done; one for each stream, since streams run side by side."""
    return _counter_of(device, torch.cuda.current_stream(device).cuda_stream)


@functools.cache
def _counter_of(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)
