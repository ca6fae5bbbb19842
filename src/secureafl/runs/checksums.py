"""Checksums of a finished run's large files, kept in its result: what was altered is noticed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError
from secureafl.runs.layout import EVENTS, MODEL

CHECKSUMS = "checksums"  # in result.json: CRC-32 by file name
_FILES = (EVENTS, MODEL)
_BLOCK = 2**20


def file_checksum(path: Path) -> str:
    """CRC-32 of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_BLOCK):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"


def make_checksums(run: Path) -> dict[str, str]:
    """Of the files that are there."""
    return {name: file_checksum(run / name) for name in _FILES if (run / name).exists()}


def find_altered(run: Path, result: Mapping[str, Any], names: Sequence[str] = _FILES) -> list[str]:
    """A line for every file that is not as the run left it; one that was removed is none."""
    noted = result.get(CHECKSUMS)
    found = []
    for name, checksum in noted.items() if isinstance(noted, Mapping) else ():
        path = run / name
        try:
            if name in names and path.exists() and file_checksum(path) != checksum:
                found.append(f"{path}: altered since the run ended (its checksum differs)")
        except OSError as error:
            found.append(f"{path}: cannot be read ({error.strerror})")
    return found


def require_intact(run: Path, result: Mapping[str, Any], name: str) -> None:
    """Raise if one of the files is not as the run left it."""
    for line in find_altered(run, result, (name,)):
        raise RunError(line)
