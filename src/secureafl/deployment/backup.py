"""A copy of a deployed run from which it can go on, taken while it is served.

The parts of a run are written one after the other, and may be exchanged while they are copied. So
events are copied first: the journal, which is written before them, then tells of no fewer rounds.
The copy counts once it has been read as a server would read it; if it does not fit it is made
again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from secureafl.core.errors import RunError
from secureafl.deployment.journal import journals
from secureafl.deployment.keys import KEYS
from secureafl.deployment.liveness import DATABASE
from secureafl.deployment.recovery import BEFORE, recover
from secureafl.deployment.secret import SECRET
from secureafl.deployment.slots import SLOTS
from secureafl.runs.folder import RunFolder, refuse_taken, require_kind
from secureafl.runs.layout import CHECKPOINT, EVENTS, EXPERIMENT, PROVENANCE, SERVER, require_run

_TRIES = 5
_FILES = (EVENTS, EXPERIMENT, PROVENANCE, SECRET, CHECKPOINT, BEFORE)


def back_up(run: Path, to: Path) -> int:
    """Copy a run to a new folder, which can be served; the round it is at there."""
    require_run(run)
    require_kind(run, deployed=True)
    refuse_taken(to)
    fresh = to.with_name(f".{to.name}.{os.getpid()}")
    why = ""
    for _ in range(_TRIES):
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            _copy(run, fresh)
            reached = _check(fresh)
            fresh.rename(to)
            return reached
        except (RunError, OSError, sqlite3.Error) as error:
            why = str(error)
    shutil.rmtree(fresh, ignore_errors=True)
    raise RunError(f"{run}: cannot be copied to {to} ({why})")


def _copy(run: Path, fresh: Path) -> None:
    (fresh / SERVER).mkdir(parents=True)
    for name in _FILES:
        if (run / name).exists():
            shutil.copy2(run / name, fresh / name)
    for journal in journals(run).values():
        shutil.copy2(journal, fresh / journal.name)
    if (run / SLOTS).exists():  # it only grows, and journals say how far it was
        shutil.copy2(run / SLOTS, fresh / SLOTS)
    if (run / KEYS).is_dir():
        shutil.copytree(run / KEYS, fresh / KEYS)
    if (run / DATABASE).exists():
        _copy_database(run / DATABASE, fresh / DATABASE)


def _copy_database(source: Path, to: Path) -> None:
    """Flower's, which knows the nodes by number: with another, clients would lose their slots."""
    to.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as live,
        closing(sqlite3.connect(to)) as copy,
    ):
        live.backup(copy)


def _check(fresh: Path) -> int:
    """The round that a copy leads to; raises if its parts do not fit together."""
    folder = RunFolder(fresh, deployed=True)
    try:
        return recover(folder).round
    finally:
        folder.close()
