"""Runs NVIDIA's MPS daemon as long as some sweep uses it: a process of its own, see `sharing`.

Sweeps hold a shared lock on the file `users`, which the kernel takes from them however they end.
The keeper waits for that lock alone, and then ends the daemon. A second keeper has nothing to do.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

_PATIENCE = 10  # seconds, for the daemon to end
_PR_SET_PDEATHSIG = 1


def keep(control: str, folder: Path) -> None:
    """Run the daemon until nobody uses it."""
    with (folder / "users").open("a") as users, (folder / "keeper").open("a") as only:
        try:
            fcntl.flock(only, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        daemon = subprocess.Popen([control, "-f"], preexec_fn=_end_with_parent)
        fcntl.flock(users, fcntl.LOCK_EX)
        _quit(control, daemon)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _quit(control: str, daemon: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run([control], input=b"quit\n", capture_output=True, timeout=_PATIENCE)
    try:
        daemon.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the sweep that started it has no process to wait for
    keep(sys.argv[1], Path(sys.argv[2]))
