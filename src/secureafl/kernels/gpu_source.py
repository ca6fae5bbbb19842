"""Compile kernels for a GPU, by what torch brings along, and choose their launch sizes."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch

from secureafl.linalg.sorting_network import sorting_network

if TYPE_CHECKING:
    from torch import Tensor

_RESNET = ["gpu_tensor_cores.cu", "gpu_tiles.cu"]
_NEEDED = {  # files that come before one
    "gpu_peers.cu": ["gpu_matrix.cu", "gpu_neighbours.cu"],
    "gpu_resnet.cu": _RESNET,
    "gpu_resnet_back.cu": _RESNET,
    "gpu_resnet_images.cu": _RESNET,
    "gpu_resnet_pool.cu": _RESNET,
}
ONE_CLIENT = 256  # threads of a block of a kernel that works on one client
IN_REGISTERS = 64  # clients up to which a thread sorts a column


def compiled(file: str, name: str, numbers: tuple[tuple[str, Any], ...], *lines: str) -> Any:
    """A kernel of a file, compiled with these numbers as macros and these lines before it."""
    return _compiled_on(torch.cuda.current_device(), file, name, numbers, *lines)


@functools.cache
def _compiled_on(
    device: int, file: str, name: str, numbers: tuple[tuple[str, Any], ...], *lines: str
) -> Any:
    """Compiled for the current GPU, whose number is part of the key: it runs on no other."""
    return torch.cuda._compile_kernel(source(file, numbers, *lines), name)


def source(file: str, numbers: tuple[tuple[str, Any], ...], *lines: str) -> str:
    """What is compiled: a file after those that it needs, these numbers as macros, these lines."""
    folder = files("secureafl.kernels")
    given = [f"#define {key} {value}" for key, value in (("ONE_CLIENT", ONE_CLIENT), *numbers)]
    names = ["gpu_sums.cu", *_NEEDED.get(file, []), file]
    parts = [folder.joinpath(name).read_text() for name in names]
    return "\n".join([*given, *lines, *parts])


@functools.cache
def network_line(size: int) -> str:
    """The exchanges that sort so many numbers, as the macro NETWORK."""
    exchanges = [f"EXCHANGE({i}, {j})" for i, j in sorting_network(size).tolist()]
    return " ".join(["#define NETWORK", *exchanges])


def blocks_for(size: int, device: torch.device) -> int:
    """The number of blocks for so many coordinates, no more than run at a time."""
    return min(-(-size // (4 * ONE_CLIENT)), 2 * processors(device)) or 1


@functools.cache
def processors(device: torch.device) -> int:
    """The number of multiprocessors: so many blocks surely run side by side."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def counter_for(device: torch.device) -> Tensor:
    """A counter of finished blocks; one for each stream, since streams run side by side."""
    return _counter_of(device, torch.cuda.current_stream(device).cuda_stream)


@functools.cache
def _counter_of(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)
