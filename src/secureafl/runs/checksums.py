"""Checksums of what a run wrote, in its result or checkpoint: what was altered is noticed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError
from secureafl.runs.layout import (
    EVENTS,
    EXPERIMENT,
    HOLDINGS,
    MODEL,
    PACE,
    PROVENANCE,
    RESULT,
    to_json,
)

# In result.json, CRC-32 by file name. Of two runs of the same experiment the first are equal; in
# the other files are times.
CHECKSUMS, WITH_TIMES = "checksums", "checksums_with_times"
_TIMED = (PROVENANCE, PACE)
FILES = (EXPERIMENT, PROVENANCE, HOLDINGS, EVENTS, PACE, MODEL)
_BLOCK = 2**20


def file_checksum(path: Path) -> str:
    """CRC-32 of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_BLOCK):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"


class EventsChecksum:
    """Checksum of events.jsonl up to some length, which only grows."""

    def __init__(self, run: Path) -> None:
        self._path, self._size, self._value = run / EVENTS, 0, 0

    def advance(self, size: int) -> int:
        """Take in the bytes up to `size`; the checksum."""
        with self._path.open("rb") as file:
            file.seek(self._size)
            while self._size < size and (piece := file.read(min(_BLOCK, size - self._size))):
                self._value, self._size = zlib.crc32(piece, self._value), self._size + len(piece)
        return self._value


def make_checksums(run: Path, result: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of the files that are there, and of the result that they lead to."""
    found = {name: file_checksum(run / name) for name in FILES if (run / name).exists()}
    timed = {name: found.pop(name) for name in _TIMED if name in found}
    return {CHECKSUMS: found, WITH_TIMES: {**timed, RESULT: _result_checksum(result)}}


def _result_checksum(result: Mapping[str, Any]) -> str:
    """Of all that it says but the checksums."""
    try:
        keys = [key for key in result if key not in (CHECKSUMS, WITH_TIMES)]
        said = to_json({key: result[key] for key in keys})
    except (ValueError, RecursionError):  # NaN, say, which can be read and is never written
        return "none"
    return f"{zlib.crc32(said.encode()):08x}"


def find_altered(
    run: Path, result: Mapping[str, Any], names: Sequence[str] = (*FILES, RESULT)
) -> list[str]:
    """A line for every file that is not as the run left it; one that was removed is none."""
    kinds = [result.get(kind) for kind in (CHECKSUMS, WITH_TIMES)]
    noted = [item for kind in kinds if isinstance(kind, Mapping) for item in kind.items()]
    found = []
    for name, checksum in noted:
        path = run / name
        try:
            if name not in names or not path.exists():
                continue
            if checksum != (_result_checksum(result) if name == RESULT else file_checksum(path)):
                found.append(f"{path}: altered since the run ended (its checksum differs)")
        except OSError as error:
            found.append(f"{path}: cannot be read ({error.strerror})")
    return found


def require_intact(run: Path, result: Mapping[str, Any], name: str) -> None:
    """Raise if one of the files is not as the run left it."""
    for line in find_altered(run, result, (name,)):
        raise RunError(line)
