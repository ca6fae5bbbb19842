"""How much memory is free, and the error where something would need more."""

from __future__ import annotations

import contextlib
from pathlib import Path

from secureafl.core.errors import ConfigError

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_memory() -> float:
    """Bytes that this machine, or the container around the process, has left; else infinity."""
    found = [float("inf")]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        found.append(1024.0 * int(line.split()[1]))
    with contextlib.suppress(OSError, ValueError):  # "max": there is no limit
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(float(int(limit) - int(used)))
    return max(0.0, min(found))


def require_memory(wanted: float, free: float, what: str, remedy: str) -> None:
    """Raise unless so many bytes are free; `what` needs them."""
    if wanted > free:
        sizes = f"needs about {in_words(wanted)} of memory, {in_words(free)} are free"
        raise ConfigError(f"{what} {sizes}; {remedy}")


def in_words(size: float) -> str:
    """A number of bytes, for people."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
