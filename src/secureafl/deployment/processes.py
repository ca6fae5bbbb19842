"""Flower's programs as children: started with clean settings, gone when their parent is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from secureafl.core.errors import ConfigError
from secureafl.deployment.guard import is_loopback

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_PATIENCE = 15.0  # seconds between asking a process to end and ending it


def environment(home: Path) -> dict[str, str]:
    """For Flower's programs: settings and apps below `home`, and no calls to the outside."""
    programs = str(Path(sys.executable).parent)  # Flower starts its other programs by name
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def start(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A child whose output is appended to a file."""
    with log.open("ab") as file:
        # A session of its own: an interrupt on the terminal is for the parent, which stops it.
        return subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """Ask a child to end, and see to it."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_leftovers(home: Path, program: str = "") -> None:
    """End what Flower's programs below `home` left behind: some outlive their parents."""
    found, until = find_processes(home, program), time.monotonic() + _PATIENCE
    for number in found:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(number, signal.SIGKILL)
    while any(map(is_alive, found)) and time.monotonic() < until:  # what they hold is free then
        time.sleep(0.05)


def find_processes(home: Path, program: str = "") -> set[int]:
    """Numbers of the processes below `home`, or of one of Flower's programs there."""
    mark, found = f"FLWR_HOME={home}".encode(), set[int]()
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            ours = mark in place.read_bytes().split(b"\0")
            if ours and program.encode() in place.with_name("cmdline").read_bytes():
                found.add(int(place.parent.name))
    return found - {os.getpid()}


def is_alive(number: int) -> bool:
    """Whether there is a process of that number, or a thread of it that still holds its files."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    place = Path(f"/proc/{number}")
    with contextlib.suppress(OSError, IndexError):
        ended = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not ended or len(list((place / "task").iterdir())) > 1
    return True


def split_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"address = {address!r}: give HOST:PORT, such as 127.0.0.1:8000")
    return host, int(port)


def require_safe(address: str, safe: bool, insecure: bool, remedy: str) -> None:
    """Raise if a connection would leave this machine unprotected without --insecure."""
    if not (safe or insecure or is_loopback(split_address(address)[0])):
        raise ConfigError(f"{address} is not this machine: {remedy}, or say --insecure")


def free_port() -> int:
    """A port at which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port: int) -> bool:
    """Whether a process answers at a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
