"""CUDA kernels of this project on a CPU, compiled by g++ with `emulated_cuda.h` instead of CUDA."""

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from secureafl.kernels import gpu_source

_HEADER = Path(__file__).with_name("emulated_cuda.h")
_OPTIONS = [
    *("-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=off"),
    *("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE"),
]


class Emulated:
    """A kernel, called as one of torch's; each call takes blocks and warps in another order."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.run, self.name, self.calls = library.run, name, 0
        self.parameters = library.parameters()

    def __call__(self, grid, block, args, shared_mem=0):
        self.calls += 1
        assert len(args) == self.parameters, self.name
        assert not shared_mem
        values = [_value(given) for given in args]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.run(places, grid[0], grid[1], block[0], self.calls)


def _value(given):
    if isinstance(given, torch.Tensor):
        return ctypes.c_void_p(given.data_ptr())
    return ctypes.c_int(given) if isinstance(given, int) else ctypes.c_double(given)


@functools.cache
def compiled(file, name, numbers, *lines, exact=False):
    """What `gpu_source.compiled` does for a GPU; if `exact`, products in TF32 are in float32."""
    source = "\n".join(
        [
            f"#define EXACT {int(exact)}",
            f'#include "{_HEADER}"',
            "namespace of_device {",
            gpu_source.source(file, numbers, *lines),
            "}",
            "static void** arguments;",
            f"static void of_thread() {{ emulator::call(of_device::{name}, arguments); }}",
            'extern "C" int parameters() {',
            f"return emulator::count_parameters(of_device::{name}); }}",
            'extern "C" void run(void** given, int across, int down, int size, unsigned seed) {',
            "arguments = given; emulator::run(of_thread, across, down, size, seed); }",
        ]
    )
    key = hashlib.sha256((source + _HEADER.read_text()).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"emulated-cuda-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{name}-{key}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        command = ["g++", *_OPTIONS, "-x", "c++", "-", "-o", str(made)]
        subprocess.run(command, input=source, text=True, check=True)
        made.replace(library)
    return Emulated(ctypes.CDLL(str(library)), name)
