"""Where data sets lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from secureafl.core.errors import DataError


def data_home() -> Path:
    """The folder of all data sets: `SECUREAFL_DATA`, or `data` where the command runs."""
    return Path(os.environ.get("SECUREAFL_DATA", "data"))


def find_folder(task: str, data_dir: str, name: str, holds: str) -> Path:
    """The folder called `name`, which holds a file or folder `holds`.

    It may lie in `data_dir`, or be that folder; without one it lies in `data_home()`.
    """
    home = Path(data_dir).expanduser() if data_dir else data_home()
    if data_dir and not home.is_dir():
        raise DataError(f"data_dir = {data_dir!r}: no such folder")
    places = [home / name, *([home] if data_dir else [])]
    found = next((place for place in places if (place / holds).exists()), None)
    if found is None:
        remedy = f"see 'secureafl data {task}', or give its place with --data-dir"
        raise DataError(f"{task}: there is no {name}/{holds} in {home}; {remedy}")
    return found
