"""The folders in which data sets are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from secureafl.core.errors import DataError


def data_home() -> Path:
    """Return the folder of all data sets: `SECUREAFL_DATA`, or `data` where the command runs."""
    return Path(os.environ.get("SECUREAFL_DATA", "data"))


def require_folder(data_dir: str) -> Path:
    """Return the folder that a setting names; it exists."""
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        remedy = "no such folder; 'secureafl data' says what is looked for, and where"
        raise DataError(f"data_dir = {data_dir!r}: {remedy}")
    return folder


def find_folder(task: str, data_dir: str, wanted: Sequence[str]) -> Path:
    """Return the folder of the first of the files `wanted`, which are given as FOLDER/FILE.

    The folder is one in `data_dir`, or `data_dir` itself; without one it is in `data_home()`.
    """
    home = require_folder(data_dir) if data_dir else data_home()
    for file in map(PurePath, wanted):
        for place in (home / file.parent, *([home] if data_dir else [])):
            if (place / file.name).exists():
                return place
    remedy = f"see 'secureafl data {task}', or give its place with --data-dir"
    raise DataError(f"{task}: there is no {' or '.join(wanted)} in {home}; {remedy}")
