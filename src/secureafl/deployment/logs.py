"""Structured logs: one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

_LAST_BYTES = 2**16


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
