"""The temporary folder of a `join`, and what those that were killed have left.

A `join` holds a lock in its folder, which the kernel releases however it ends. Whoever finds a
folder whose lock is free ends the processes that belong to it and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from io import BufferedWriter
from pathlib import Path

from secureafl.deployment.processes import end_leftovers

_PREFIX = "secureafl-join-"
_LOCK = "lock"
_YOUNG_SECONDS = 60.0  # a folder without a lock may be just being made
FLOWER = "flower"  # Flower's own folder in it, by which its programs are known


def make_home() -> tuple[Path, BufferedWriter]:
    """A new folder, closed to other users, and its lock, to be kept open."""
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_abandoned(home):
            clear_home(home)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = (home / _LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return home, lock


def clear_home(home: Path) -> None:
    """End what runs in the folder of a `join`, and remove it."""
    if home.name.startswith(_PREFIX):  # nothing else is ever removed
        end_leftovers(home)
        end_leftovers(home / FLOWER)
        shutil.rmtree(home, ignore_errors=True)


def _is_abandoned(home: Path) -> bool:
    try:
        facts = home.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode):
            return False
        if not (home / _LOCK).exists():
            return time.time() - facts.st_mtime > _YOUNG_SECONDS
        with (home / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another `join` holds it, or has just removed it
        return False
    return True
