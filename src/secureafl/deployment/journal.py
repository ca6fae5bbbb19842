"""The uploads since the last checkpoint, on disk before they are applied.

A checkpoint and the journal after it give the same bits again: the server step is a function of
what it is fed. A journal belongs to one checkpoint by its name, so that an upload is never fed to
a state that holds it already, wherever between the two files a kill comes.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from secureafl.core.errors import RunError

if TYPE_CHECKING:
    from jaxtyping import Float

_HEAD = struct.Struct("<4sIII")  # mark, bytes of the facts, bytes of the numbers, checksum of both
_MARK = b"SAFJ"


class Entry(NamedTuple):
    """One arrival, as it came in."""

    round: int
    client: int
    version: int
    message: str  # id of the request it answers, which is answered once
    malicious: bool
    reason: str  # why it was refused before the server saw it; empty otherwise
    update: Float[np.ndarray, " d"] | None  # None if it was refused


class Journal:
    """The file of one checkpoint."""

    def __init__(self, folder: Path, round: int) -> None:
        """That of the checkpoint made after `round` arrivals; journals of others are deleted."""
        self._path = folder / f"journal-{round}.bin"
        for other in folder.glob("journal-*.bin"):
            if other != self._path:
                other.unlink()
        self._file = self._path.open("ab")
        _sync_folder(folder)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, entry: Entry) -> None:
        """Return when the entry is on the disk."""
        self._file.write(pack(entry))
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self) -> list[Entry]:
        """All entries; a last one that a kill has cut is cut off, for it was never applied."""
        content = self._path.read_bytes()
        whole = list(unpack(content))
        end = whole[-1][1] if whole else 0
        if end < len(content):
            os.truncate(self._path, end)
        return [entry for entry, _ in whole]

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def remove(self) -> None:
        """Delete the file: the run is finished."""
        self.close()
        self._path.unlink()


def pack(entry: Entry) -> bytes:
    """The entry as bytes."""
    facts = json.dumps(entry._replace(update=None)._asdict()).encode()
    numbers = b"" if entry.update is None else np.asarray(entry.update, "<f4").tobytes()
    checksum = zlib.crc32(numbers, zlib.crc32(facts))
    return _HEAD.pack(_MARK, len(facts), len(numbers), checksum) + facts + numbers


def unpack(content: bytes) -> Iterator[tuple[Entry, int]]:
    """Each whole entry, and where it ends; what follows the last whole one is passed over."""
    at = 0
    while at + _HEAD.size <= len(content):
        mark, length, size, checksum = _HEAD.unpack_from(content, at)
        begin, middle = at + _HEAD.size, at + _HEAD.size + length
        at = middle + size
        facts, numbers = content[begin:middle], content[middle:at]
        if mark != _MARK or at > len(content) or zlib.crc32(numbers, zlib.crc32(facts)) != checksum:
            return
        yield _entry(facts, numbers), at


def _entry(facts: bytes, numbers: bytes) -> Entry:
    try:
        entry = Entry(**json.loads(facts))
    except (ValueError, TypeError) as error:
        raise RunError(f"journal: damaged ({error}); it was altered") from error
    update = np.frombuffer(numbers, "<f4").copy() if not entry.reason else None
    return entry._replace(update=update)


def _sync_folder(folder: Path) -> None:
    """Names of files are on the disk too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
