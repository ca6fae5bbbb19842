"""Files of a run folder by which `serve` and its ServerApp see that the other is alive."""

from __future__ import annotations

import os
from pathlib import Path

from secureafl.core.files import put_file
from secureafl.deployment.processes import is_alive

_SERVER = Path("server")
APP = _SERVER / "app"
LOG = _SERVER / "log.jsonl"
SERVE = _SERVER / "serve.pid"  # while `serve` runs
ALIVE = _SERVER / "alive"  # the ServerApp's process, attempt and round
STOP = _SERVER / "stop"  # asks the ServerApp to stop


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


def should_stop(out: Path) -> bool:
    """Whether the ServerApp was asked to stop, or its `serve` is gone."""
    if (out / STOP).exists():
        return True
    try:
        return not is_alive(int((out / SERVE).read_text()))
    except (OSError, ValueError):
        return False  # started by Flower alone
