"""A task of one's own in a deployment: the same file on both sides, named by its own operator.

A client imports nothing that a message names. Its operator names the class; a request says which
class the run has and the checksum of its file, and the client trains only if both are its own.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError

_SHOWN = 12  # digits of a checksum that people compare


def task_checksum(task: Any) -> str:
    """Of the file that has the task's class; empty if it is the package's own."""
    cls = type(task)
    if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return ""
    return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()


def require_named(kind: str, named: str) -> None:
    """Raise unless the operator of this client has named the class that a request asks for."""
    kind = kind.partition("@")[0]
    if kind == named or (not named and ":" not in kind):
        return
    shown = repr(kind)[:80]
    if not named:
        remedy = f"get its file from whoever runs the server, read it, and join with --task {kind}"
        raise ConfigError(f"the run has a task of its own, {shown}; {remedy[:200]}")
    raise ConfigError(f"the run has the task {shown}, and this client was started for {named!r}")


def require_same_file(task: Any, checksum: str) -> None:
    """Raise unless the task's file is the one that the server has."""
    own = task_checksum(task)
    if own != checksum:
        file = Path(inspect.getfile(type(task))).name
        sums = f"{own[:_SHOWN]} here and {checksum[:_SHOWN] or 'none'} on the server"
        raise ConfigError(f"{file} differs from the server's (SHA-256 {sums}); use the same file")
