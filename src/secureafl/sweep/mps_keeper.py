"""Runs NVIDIA's MPS daemon as long as some sweep uses it: a process of its own, see `sharing`.

Sweeps hold a shared lock on the file `users`, which the kernel takes from them however they end.
As soon as nobody holds it, the keeper ends the daemon. It ends itself when the daemon does, so that
the next sweep starts another. Of several keepers one has the daemon, the others nothing to do.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

_STARTUP = 0.5  # seconds, after which a daemon that could not start has ended
_LOOK = 0.1  # seconds
_PATIENCE = 10  # seconds, for the daemon to end
_PR_SET_PDEATHSIG = 1


def keep(control: str, folder: Path, tell: Callable[[], object]) -> None:
    """Run the daemon until nobody uses it; `tell` once it runs, here or by another keeper."""
    with (folder / "users").open("a") as users, (folder / "keeper").open("a") as only:
        if _has_keeper(only):
            tell()
            return
        daemon = subprocess.Popen([control, "-f"], preexec_fn=_end_with_parent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(_STARTUP)
            return
        tell()
        while daemon.poll() is None:
            if _locked(users):
                _quit(control, daemon)
            time.sleep(_LOOK)


def _has_keeper(only: IO[str]) -> bool:
    """Whether another keeper runs a daemon, and not one that ends at once."""
    if _locked(only):
        return False
    time.sleep(2 * _STARTUP)
    return not _locked(only)


def _locked(file: IO[str]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


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


def main(control: str, folder: Path, remove: bool) -> None:
    """Keep the daemon in a process that nobody has to wait for; exit with 0 once it runs."""
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os._exit(0 if os.read(told, 1) else 1)
    os.close(told)

    def say_so() -> None:
        with contextlib.suppress(BrokenPipeError):  # the sweep was killed; others may have joined
            os.write(tell, b".")

    try:
        keep(control, folder, say_so)
    finally:
        if remove:  # no other sweep comes here
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "--remove" in sys.argv)
