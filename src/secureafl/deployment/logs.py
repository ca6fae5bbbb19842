"""Structured logs: one JSON object a line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Log:
    """A file that lines are added to."""

    def __init__(self, path: Path) -> None:
        """The file may hold lines of other processes."""
        self._path = path

    def __call__(self, what: str, **facts: Any) -> None:
        """Write one line: when, what, and the facts."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": when, "event": what, **facts}, default=str)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
