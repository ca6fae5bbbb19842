"""Files of a run folder by which `serve` and its ServerApp see that the other is alive.

`serve` holds a lock, which the kernel releases however it ends; a process number could be another
process's by then. A ServerApp that `serve` has started leaves with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import LockedError, RunError
from secureafl.core.files import put_file
from secureafl.runs.layout import SERVER

_SERVER = Path(SERVER)
APP = _SERVER / "app"
LOG = _SERVER / "log.jsonl"
DATABASE = _SERVER / "superlink.db"  # Flower's nodes and messages
SERVE = _SERVER / "serve.lock"  # held while `serve` runs
ALIVE = _SERVER / "alive.json"  # the ServerApp's fields of Liveness
STOP = _SERVER / "stop"  # asks the ServerApp to stop
ATTEMPT = _SERVER / "attempt"  # of the ServerApp that `serve` has asked for last

_PATIENCE = 2.0  # seconds; a ServerApp holds the lock for an instant to see whether it is free
_PULSE_SECONDS = 5.0
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


class Liveness(NamedTuple):
    """What a ServerApp says of itself, every few seconds."""

    process: int = 0
    attempt: str = ""
    round: int = 0
    seen: float = 0.0  # when it said so; times are of the system's clock
    arrived: float = 0.0  # when the last update came in, 0: none did
    metrics_port: int = 0  # where its metrics are on this machine


def write_liveness(out: Path, said: Liveness) -> None:
    """Note how this process, the ServerApp, does."""
    put_file(out / ALIVE, json.dumps(said._asdict()).encode())


def read_liveness(out: Path) -> Liveness:
    """What the last ServerApp said; nothing if there was none."""
    try:
        return Liveness(**json.loads((out / ALIVE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return Liveness()


class Pulse:
    """Writes the liveness of this process: after arrivals, and every few seconds."""

    def __init__(self, out: Path, attempt: str, metrics_port: int) -> None:
        """When the last update came in outlives the process that took it."""
        self._out = out
        arrived = read_liveness(out).arrived
        self._last = Liveness(os.getpid(), attempt, -1, 0.0, arrived, metrics_port)

    def beat(self, at_round: int) -> None:
        """Note the round; whoever reads it must not wait long."""
        last, now = self._last, time.time()
        if at_round == last.round and now - last.seen < _PULSE_SECONDS:
            return
        news = last.round not in (-1, at_round)
        self._last = last._replace(round=at_round, seen=now, arrived=now if news else last.arrived)
        with contextlib.suppress(OSError):  # on a full disk, which is told of elsewhere
            write_liveness(self._out, self._last)


def should_stop(out: Path, attempt: str) -> bool:
    """Whether the ServerApp was asked to stop, its `serve` is gone, or another took its place."""
    if (out / STOP).exists():
        return True
    return bool(attempt) and (not is_served(out) or _is_replaced(out, attempt))


def _is_replaced(out: Path, attempt: str) -> bool:
    """Whether `serve` has given this attempt up; Flower may start it even long after that."""
    try:
        return (out / ATTEMPT).read_text() != attempt
    except OSError:
        return False


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
