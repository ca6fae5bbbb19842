"""Structured logs, one JSON object a line; and no log grows for ever."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

_LAST_BYTES = 2**16
LARGEST_LOG = 32 * 2**20  # bytes, after which a log is put aside
_KEPT = 4  # logs that were put aside, as NAME.1 (the newest) to NAME.4


def rotate(path: Path, held_open: bool, largest: int = LARGEST_LOG) -> None:
    """Put a log aside that has grown large, and drop the oldest of those.

    A log that another process `held_open` is copied and emptied, which may lose a line; it writes
    at the end, wherever that is.
    """
    with contextlib.suppress(OSError):  # there is none, or no room for it
        if path.stat().st_size < largest:
            return
        for number in range(_KEPT - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        aside = path.with_name(f"{path.name}.1")
        if not held_open:
            path.replace(aside)
            return
        shutil.copyfile(path, aside)
        os.truncate(path, 0)


class Log:
    """A file that lines are added to."""

    def __init__(self, path: Path) -> None:
        """The file may hold lines of other processes."""
        self._path = path

    def __call__(self, what: str, **facts: Any) -> None:
        """Write one line: when, what, and the facts. A full disk must not end who writes it."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": when, "event": what, **facts}, default=str)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def last(self, what: str) -> dict[str, Any]:
        """The last line of a kind among the newest; empty if there is none."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = file.read().split(b"\n")[1:]
        except OSError:
            return {}
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if found.get("event") == what:
                    return found
        return {}
