"""Structured logs: one JSON object a line, on stderr."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def tell(what: str, **facts: Any) -> None:
    """Write one line: when, what, and the facts."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {"time": when, "event": what, **facts}
    print(json.dumps(line, default=str), file=sys.stderr, flush=True)
