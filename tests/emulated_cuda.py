"""CUDA kernels of this project on a CPU, compiled by g++ with two headers instead of CUDA's."""

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from secureafl.kernels import dispatch, gpu_source

GPU = "cuda" if torch.cuda.is_available() else "cpu"  # where tensors are that kernels take
ABLE = sys.platform == "linux" and shutil.which("g++") is not None
_MARKS = [pytest.mark.slow] if GPU == "cpu" else []
_HERE = Path(__file__).parent
_HEADERS = [_HERE / "emulated_cuda.h", _HERE / "emulated_tensor_cores.h"]
_FOLDER = _HERE.parent / "build" / "emulated-cuda"
_OPTIONS = [
    *("-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=off"),
    *("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE"),
]
_CACHED = [
    *(gpu_source._kernels_on, gpu_source._written_on),
    *(gpu_source.processors, gpu_source._counter_of),
]
_FEW = 3  # multiprocessors: so few that blocks have several tiles


def costly(*case):
    """A case that is a slow test where its kernels are compiled for a CPU and run there."""
    return pytest.param(*case, marks=_MARKS)


def emulate(monkeypatch, exact=False):
    """From now on what is written for a GPU runs for tensors of the CPU.

    If `exact`, products of tensor cores in TF32 are in float32.
    """
    properties = SimpleNamespace(
        multi_processor_count=_FEW, shared_memory_per_block_optin=227 * 1024
    )
    for name, found in {
        "current_device": 0,
        "current_stream": SimpleNamespace(cuda_stream=0),
        "get_device_properties": properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, found=found: found)
    monkeypatch.setattr(gpu_source, "_load", functools.partial(load, exact=exact))
    monkeypatch.setattr(dispatch, "_kind_for", lambda tensor: "gpu")
    for cached in _CACHED:
        cached.cache_clear()


class _Emulated:
    """A kernel, called as one of torch's; each call takes blocks and warps in another order."""

    def __init__(self, library, name):
        self.run, self.name, self.calls = library[f"run_{name}"], name, 0
        self.parameters = library[f"count_{name}"]()

    def __call__(self, grid, block, args, shared_mem=0):
        self.calls += 1
        assert len(args) == self.parameters, self.name
        assert grid[2] == block[1] == block[2] == 1
        values = [_value(given) for given in args]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.run(places, grid[0], grid[1], block[0], shared_mem, self.calls)

    def set_shared_memory_config(self, size):
        """Nothing to do: there is room."""


def _value(given):
    if isinstance(given, torch.Tensor):
        return ctypes.c_void_p(given.data_ptr())
    return ctypes.c_int(given) if isinstance(given, int) else ctypes.c_double(given)


def load(source, exact=False):
    """What `gpu_source._load` does for a GPU."""
    library = _library(f"#define EXACT {int(exact)}", source)
    made = {name: _Emulated(library, name) for name in gpu_source.kernel_names(source)}
    return SimpleNamespace(**made)


_ROOM = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")


@functools.cache
def _library(first_line, source):
    """What g++ makes of a source."""
    own = _ROOM.sub(r"\1* \2 = (\1*)emulator::dynamic;", source)
    kernels = [f"KERNEL({name})" for name in gpu_source.kernel_names(source)]
    included = [f'#include "{header}"' for header in _HEADERS]
    device = ["namespace of_device { namespace {", own, "} }"]
    text = "\n".join([first_line, *included, *device, *kernels])
    known = "".join([text, *(header.read_text() for header in _HEADERS)])
    library = _FOLDER / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        command = ["g++", *_OPTIONS, "-x", "c++", "-", "-o", str(made)]
        subprocess.run(command, input=text, text=True, check=True)
        made.replace(library)
    return ctypes.CDLL(str(library))
