"""Structured logs: one JSON object a line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Log:
    """A file that lines are added to."""

    def __init__(self, path: Path) -> None:
        """The file may hold lines of an earlier process."""
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, what: str, **facts: Any) -> None:
        """Write one line: when, what, and the facts."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": when, "event": what, **facts}, default=str)
        self._file.write(line + "\n")
        self._file.flush()
