"""Room on the disk: a run that cannot be written is told of at once, and takes no more updates.

Below a reserve the server waits. So its log, its status and the checkpoint of a stop still fit, and
it goes on by itself when there is room again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from secureafl.runs.layout import PROBLEM, SERVER

MEGABYTE = 2**20
_PROBE = Path(SERVER) / ".probe"
_PROBE_BYTES = 4096
_NOTE_BYTES = 1024


def free_bytes(path: Path) -> int:
    """What this user may still write there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def shortage(path: Path, reserve: int) -> str:
    """That there is less room than a reserve, in one line; empty if there is enough."""
    free = free_bytes(path)
    if free >= reserve:
        return ""
    left, wanted = free // MEGABYTE, -(-reserve // MEGABYTE)
    return f"disk full: {left:,} MB free at {path}, and below {wanted:,} MB no update is taken"


def find_problem(run: Path, reserve: int) -> str:
    """What keeps a run folder from being written, in one line; empty if nothing does."""
    try:
        if short := shortage(run, reserve):
            return short
        with (run / _PROBE).open("wb") as file:  # a quota is seen by writing only
            file.write(bytes(_PROBE_BYTES))
        (run / _PROBE).unlink()
    except OSError as error:
        return f"{run}: cannot be written ({error.strerror}), so no update is taken"
    return ""


def note_problem(run: Path, line: str) -> None:
    """Leave a line for whoever reads the folder, or none.

    The file is written in place: that needs no room once it is there.
    """
    content = line.encode(errors="replace")[:_NOTE_BYTES].ljust(_NOTE_BYTES)
    with contextlib.suppress(OSError):
        number = os.open(run / PROBLEM, os.O_WRONLY | os.O_CREAT, 0o644)
        with os.fdopen(number, "wb") as file:
            file.write(content)
