"""Compile kernels for a GPU, by what torch brings along, and choose their launch sizes."""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from secureafl.linalg.sorting_network import sorting_network

if TYPE_CHECKING:
    from torch import Tensor

_KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(')
_RESNET = ["gpu_tensor_cores.cu", "gpu_tiles.cu"]
_NEEDED = {  # files that come before one
    "gpu_peers.cu": ["gpu_matrix.cu", "gpu_neighbours.cu"],
    "gpu_resnet.cu": _RESNET,
    "gpu_resnet_back.cu": _RESNET,
    "gpu_resnet_images.cu": _RESNET,
    "gpu_resnet_pool.cu": _RESNET,
}
ONE_CLIENT = 256  # threads of a block of a kernel that works on one client
DECLARED = 16 * 1024  # most bytes of shared memory that a kernel declares which gets more at launch
_UNASKED = 48 * 1024
IN_REGISTERS = 64  # clients up to which a thread sorts a column


def compiled(file: str, name: str, numbers: tuple[tuple[str, Any], ...], *lines: str) -> Any:
    """A kernel of a file, compiled with these numbers as macros and these lines before it."""
    return getattr(_kernels_on(torch.cuda.current_device(), file, numbers, *lines), name)


@functools.cache
def _kernels_on(
    device: int, file: str, numbers: tuple[tuple[str, Any], ...], *lines: str
) -> object:
    """All kernels of a file, for the current GPU, whose number is part of the key.

    They are compiled together, since compiling one of them takes as long as all.
    """
    folder = files("secureafl.kernels")
    given = [f"#define {key} {value}" for key, value in (("ONE_CLIENT", ONE_CLIENT), *numbers)]
    sources = ["gpu_sums.cu", *_NEEDED.get(file, []), file]
    parts = [folder.joinpath(source).read_text() for source in sources]
    return _settling("\n".join([*given, *lines, *parts]))


def written(file: str, text: str, name: str) -> Any:
    """A kernel that was written just now, and needs what a file has."""
    return getattr(_written_on(torch.cuda.current_device(), file, text), name)


@functools.cache
def _written_on(device: int, file: str, text: str) -> object:
    return _settling("\n".join([files("secureafl.kernels").joinpath(file).read_text(), text]))


class _Kernel:
    """A kernel that is launched after all that torch was asked for before (`kernels.fused`)."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.set_shared_memory_config = kernel.set_shared_memory_config

    def __call__(self, *given: Any, **more: Any) -> None:
        for mode in _get_current_dispatch_mode_stack():
            settle = getattr(mode, "settle", None)
            if settle is not None:
                settle()
        self._kernel(*given, **more)


def _settling(source: str) -> object:
    made = _load(source)
    return SimpleNamespace(**{name: _Kernel(getattr(made, name)) for name in kernel_names(source)})


def _load(source: str) -> object:
    """The kernels of a source, by name as attributes."""
    # What `torch.cuda._compile_kernel` is made of, which gives back one kernel only.
    from torch.cuda._utils import _cuda_load_module, _nvrtc_compile

    binary, _ = _nvrtc_compile(source, kernel_names(source)[0])
    return _cuda_load_module(binary)


def kernel_names(source: str) -> list[str]:
    """The names of all kernels of a source."""
    return _KERNEL.findall(source)


def give_room(kernel: Any, size: int) -> None:
    """Let launches of a kernel have so many bytes of shared memory beside those it declares.

    Without this both together may be 48 KiB, and torch does not ask for less.
    """
    if size + DECLARED > _UNASKED:
        kernel.set_shared_memory_config(max(size, _UNASKED))


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
