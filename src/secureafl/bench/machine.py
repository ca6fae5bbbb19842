"""The machine under the measurement: what it is, its bandwidth, and its memory."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from secureafl import __version__
from secureafl.bench.cases import FLOAT_BYTES, Case
from secureafl.bench.clock import sample

_PACKAGES = ("torch", "numpy", "llvmlite", "flwr")


class Bandwidth(NamedTuple):
    """Bytes per second, at best: the floor is what no disturbance can lower."""

    read: float  # by adding up a buffer
    copy: float  # read and written, by copying it
    buffer_bytes: int
    device: str  # cpu or cuda

    def best(self, other: Bandwidth) -> Bandwidth:
        """The better of two measurements, figure by figure."""
        read, copy = max(self.read, other.read), max(self.copy, other.copy)
        return self._replace(read=read, copy=copy)


def measure_bandwidth(case: Case, device: torch.device) -> Bandwidth:
    """Measure on a buffer as large as the case's memory, or the largest that fits twice."""
    size = int(min(case.memory_bytes, free_memory(device) / 4)) // FLOAT_BYTES
    buffer = torch.ones(size, device=device)
    other = torch.empty_like(buffer)
    read = min(sample(buffer.sum, device, repeats=15))
    copy = min(sample(lambda: other.copy_(buffer), device, repeats=15))
    held = buffer.nbytes
    return Bandwidth(1e3 * held / read, 2e3 * held / copy, held, device.type)


def free_memory(device: torch.device) -> int:
    """Free bytes on the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    found = [_physical_memory()]
    with contextlib.suppress(OSError, ValueError):
        found.append(_kilobytes("/proc/meminfo", "MemAvailable"))
    with contextlib.suppress(OSError, ValueError):  # a container's limit, "max" without one
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def reset_peak(device: torch.device) -> None:
    """Reset what `peak_memory` measures."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # Linux only; elsewhere the peak is the process's
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: torch's on a GPU, the whole process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return _kilobytes("/proc/self/status", "VmHWM")
    except (OSError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe_machine() -> dict[str, Any]:
    """A description of the computer, for people who compare figures."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_bytes": _physical_memory(),
    }


def device_name(device: torch.device) -> str:
    """What a figure was measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """Versions of the installed packages that affect the figures."""
    found = {"python": platform.python_version(), "secureafl": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@functools.cache
def _processor() -> str:
    """The processor's name where the system tells it, else its architecture."""
    with contextlib.suppress(OSError):
        asked = subprocess.run(["lscpu"], capture_output=True, text=True, env={"LC_ALL": "C"})
        for line in asked.stdout.splitlines():
            if line.startswith("Model name:"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kilobytes(path: str, key: str) -> int:
    """A line such as `MemAvailable: 1234 kB` of a file, in bytes."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"{path}: no {key}")
