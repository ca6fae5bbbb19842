"""A growing file of lines, read from where the last reading ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import RunError

BLOCK = 2**18  # bytes read at a time, and the longest line
_REMEMBERED = 512  # bytes before the place: should they change, the file was written anew


class Block(NamedTuple):
    """Whole lines, in order."""

    lines: list[bytes]
    again: bool  # the file was cut back or replaced: these are its first lines
    more: bool  # whether there is more to read at once
    half: bool  # whether the file ends in the middle of a line


class Tail:
    """Reads what was added to a file; a half-written last line waits for its end.

    A resumed run cuts its events back to the last checkpoint. Reading on from the old place would
    count rounds twice, so then everything is read again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start_over()

    def _start_over(self) -> None:
        self._offset, self._before = 0, b""

    def read(self) -> Block:
        """The lines that were added since the last call, at most a block of them."""
        try:
            with self.path.open("rb") as file:
                again = self._changed(file.fileno())
                if again:
                    self._start_over()
                found = os.pread(file.fileno(), BLOCK, self._offset)
        except FileNotFoundError:
            again = self._offset > 0
            self._start_over()
            return Block([], again, False, False)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read ({error.strerror})") from error
        end = found.rfind(b"\n") + 1
        if not end and len(found) == BLOCK:
            raise RunError(f"{self.path}: damaged (a line of more than {BLOCK:,} bytes)")
        self._offset += end
        self._before = (self._before + found[:end])[-_REMEMBERED:]
        more = len(found) == BLOCK
        return Block(found[:end].split(b"\n")[:-1], again, more, end < len(found) and not more)

    def _changed(self, file: int) -> bool:
        start = self._offset - len(self._before)
        return os.pread(file, len(self._before), start) != self._before
