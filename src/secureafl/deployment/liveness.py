"""Files of a run folder by which `serve` and its ServerApp see that the other is alive.

`serve` holds a lock, which the kernel releases however it ends; a process number could be another
process's by then. A ServerApp that `serve` has started leaves with it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from io import BufferedWriter
from pathlib import Path

from secureafl.core.errors import LockedError, RunError
from secureafl.core.files import put_file
from secureafl.runs.layout import SERVER

_SERVER = Path(SERVER)
APP = _SERVER / "app"
LOG = _SERVER / "log.jsonl"
DATABASE = _SERVER / "superlink.db"  # Flower's nodes and messages
SERVE = _SERVER / "serve.lock"  # held while `serve` runs
ALIVE = _SERVER / "alive"  # the ServerApp's process, attempt and round
STOP = _SERVER / "stop"  # asks the ServerApp to stop

_PATIENCE = 2.0  # seconds; a ServerApp holds the lock for an instant to see whether it is free
_GRACE_SECONDS = 30.0  # between the wish that the ServerApp stops and the end of its process


def hold_run(out: Path) -> BufferedWriter:
    """The lock of this `serve`, as a file to keep open; raises while another has it."""
    until = time.monotonic() + _PATIENCE
    try:
        file = (out / SERVE).open("wb")
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror})") from None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > until:
                file.close()
                raise LockedError(f"{out}: another 'secureafl serve' is at work on it") from None
            time.sleep(0.05)


def is_served(out: Path) -> bool:
    """Whether a `serve` is at work on a run."""
    try:
        with (out / SERVE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_liveness(out: Path, attempt: str, at_round: int) -> None:
    """Note that this process is the ServerApp, and its round."""
    put_file(out / ALIVE, f"{os.getpid()} {attempt} {at_round}".encode())


def read_liveness(out: Path) -> tuple[int, str, int]:
    """Process, attempt and round of the last ServerApp; (0, "", 0) if there was none."""
    try:
        number, attempt, at_round = (out / ALIVE).read_text().split(" ")
        return int(number), attempt, int(at_round)
    except (OSError, ValueError):
        return 0, "", 0


def should_stop(out: Path, attempt: str) -> bool:
    """Whether the ServerApp was asked to stop, or the `serve` that made the attempt is gone."""
    return (out / STOP).exists() or (bool(attempt) and not is_served(out))


def watch(out: Path, attempt: str, grace: float = _GRACE_SECONDS) -> None:
    """End this process some time after it should have stopped, whatever it is busy with.

    Where the SuperLink is gone, Flower tries to reach it for ever. Nothing is lost: what was
    applied is in the journal.
    """
    if attempt:  # otherwise the process is not ours
        threading.Thread(target=_watch, args=(out, attempt, grace), daemon=True).start()


def _watch(out: Path, attempt: str, grace: float) -> None:
    since = time.monotonic()
    while time.monotonic() - since < grace:
        time.sleep(min(1.0, grace / 4))
        if not should_stop(out, attempt):
            since = time.monotonic()
    os._exit(1)
