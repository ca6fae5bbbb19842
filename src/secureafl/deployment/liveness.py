"""Files of a run folder by which `serve` and its ServerApp know of each other."""

from __future__ import annotations

import os
from pathlib import Path

from secureafl.core.files import put_file
from secureafl.deployment.processes import is_alive

_SERVER = Path("server")
APP = _SERVER / "app"
LOG = _SERVER / "log.jsonl"
SERVE = _SERVER / "serve.pid"  # while `serve` runs
SIGN_OF_LIFE = _SERVER / "alive"  # the ServerApp's process, attempt and round
STOP = _SERVER / "stop"  # asks the ServerApp to leave


def show_life(out: Path, attempt: str, at_round: int) -> None:
    """Say that this process is the ServerApp."""
    put_file(out / SIGN_OF_LIFE, f"{os.getpid()} {attempt} {at_round}".encode())


def read_life(out: Path) -> tuple[int, str, int]:
    """Process, attempt and round of the last ServerApp; (0, "", 0) if there was none."""
    try:
        number, attempt, at_round = (out / SIGN_OF_LIFE).read_text().split(" ")
        return int(number), attempt, int(at_round)
    except (OSError, ValueError):
        return 0, "", 0


def to_leave(out: Path) -> bool:
    """Whether the ServerApp was asked to leave, or its `serve` is gone."""
    if (out / STOP).exists():
        return True
    try:
        return not is_alive(int((out / SERVE).read_text()))
    except (OSError, ValueError):
        return False  # started by Flower alone
