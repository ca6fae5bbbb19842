"""The uploads since the last checkpoint, on disk before they are applied.

A checkpoint and the journal after it give the same bits again: the server step is a function of
what it is fed. A journal belongs to one checkpoint by its name and its head, so that an upload is
never fed to a state that holds it already, wherever between the two files a kill comes. Records
are numbered by their rounds and carry a checksum; what does not fit is left where it is. That a
client was put out is a record, too, of the round it happened in.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from secureafl.core.errors import RunError
from secureafl.core.files import put_private_file

if TYPE_CHECKING:
    from jaxtyping import Float

FORMAT = 4  # of journals and of what a checkpoint says of itself
_FILE = struct.Struct("<8sIQ")  # mark, format, round of the checkpoint
_FILE_MARK, _FIRST_FORMAT = b"SAFLJRNL", b"SAFJ"  # files of the first format had no head
_HEAD = struct.Struct("<4sIII")  # mark, bytes of the facts, bytes of the numbers, checksum
_MARK = b"SAFR"
_CUT = "is cut"


class Entry(NamedTuple):
    """One arrival, as it came in."""

    round: int
    client: int
    version: int
    message: str  # id of the request it answers, which is answered once
    malicious: bool
    update: Float[np.ndarray, " d"]
    slots: int = 0  # lines that the file of slots had then


class Removal(NamedTuple):
    """A client that the defence forgot because its node was put out; no round of its own."""

    round: int  # arrivals before it
    client: int
    node: int


Record = Entry | Removal


def count_rounds(records: Iterable[Record]) -> int:
    """How many arrivals there are among some records."""
    return sum(isinstance(record, Entry) for record in records)


class Content(NamedTuple):
    """What a journal holds up to its first fault."""

    records: list[Record]
    end: int  # bytes up to there
    fault: str  # what is wrong there; empty: nothing
    cut: bool = False  # whether it is a record that breaks off at the end of the file


def journal_path(folder: Path, number: int) -> Path:
    """The journal of the checkpoint made after so many arrivals."""
    return folder / f"journal-{number}.bin"


def journals(folder: Path) -> dict[int, Path]:
    """All journals of a run, by the round they begin with."""
    found = ((path, path.stem.removeprefix("journal-")) for path in folder.glob("journal-*.bin"))
    return {int(number): path for path, number in found if number.isdigit()}


class Journal:
    """The file of one checkpoint, to be added to."""

    def __init__(self, folder: Path, number: int, records: int = 0) -> None:
        """That of the checkpoint made after so many arrivals, with the records it has already."""
        self._path = journal_path(folder, number)
        self.number, self.records = number, records
        if not self._path.exists():
            put_private_file(self._path, _FILE.pack(_FILE_MARK, FORMAT, number))
        self._file = self._path.open("ab")

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, record: Record) -> None:
        """Return when the record is on the disk."""
        self._file.write(pack(record))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records += 1

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def pack(record: Record) -> bytes:
    """The record as bytes."""
    fields = record._asdict()
    update = fields.pop("update", None)
    facts = json.dumps(fields).encode()
    numbers = b"" if update is None else np.asarray(update, "<f4").tobytes()
    return _HEAD.pack(_MARK, len(facts), len(numbers), _checksum(facts, numbers)) + facts + numbers


def _checksum(facts: bytes, numbers: bytes) -> int:
    lengths = struct.pack("<II", len(facts), len(numbers))
    return zlib.crc32(numbers, zlib.crc32(facts, zlib.crc32(lengths)))


def read_journal(path: Path, number: int) -> Content:
    """What a journal that should begin with a round holds; another version's is refused."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Content([], 0, f"{path.name} is missing")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    if content.startswith(_FIRST_FORMAT) and not content.startswith(_FILE_MARK):
        refuse_format(path, 1)
    mark, written, begins = _FILE.unpack(content[: _FILE.size].ljust(_FILE.size, b"\0"))
    if mark != _FILE_MARK or len(content) < _FILE.size:
        return Content([], 0, f"{path.name} has a damaged head")
    if written != FORMAT:
        refuse_format(path, written)
    if begins != number:
        return Content([], 0, f"{path.name} is the journal of round {begins}")
    return _read_records(path.name, content, number)


def refuse_format(path: Path, written: int) -> NoReturn:
    """Raise: a file was written by a version whose files this one does not read."""
    remedy = "finish the run with that version, or choose another folder (out)"
    raise RunError(f"{path}: is of format {written}, and this version's is {FORMAT}; {remedy}")


def _read_records(name: str, content: bytes, number: int) -> Content:
    records: list[Record] = []
    at, due = _FILE.size, number
    while at < len(content):
        found = _read_record(content, at)
        if isinstance(found, str):
            fault = f"{name} {found} at its record {len(records) + 1}"
            return Content(records, at, fault, found == _CUT)
        if found[0].round != due:
            return Content(records, at, f"{name} has round {found[0].round} for {due}")
        records.append(found[0])
        at, due = found[1], due + isinstance(found[0], Entry)
    return Content(records, at, "")


def _read_record(content: bytes, at: int) -> tuple[Record, int] | str:
    """The record at a place and where it ends, or what is wrong with it."""
    if at + _HEAD.size > len(content):
        return _CUT
    mark, length, size, checksum = _HEAD.unpack_from(content, at)
    begin, middle = at + _HEAD.size, at + _HEAD.size + length
    end = middle + size
    if mark == _MARK and end > len(content):
        return _CUT
    facts, numbers = content[begin:middle], content[middle:end]
    if mark != _MARK or _checksum(facts, numbers) != checksum:
        return "is damaged"
    try:
        fields = json.loads(facts)
        if "node" in fields:
            return Removal(**fields), end
        return Entry(**fields, update=np.frombuffer(numbers, "<f4").copy()), end
    except (ValueError, TypeError, KeyError):
        return "is altered"
