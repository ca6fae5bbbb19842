"""A run folder followed while it grows; a damaged one is read as far as that is possible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError, SecureAflError
from secureafl.runs.checksums import FILES, find_altered
from secureafl.runs.digest import Digest
from secureafl.runs.events import parse
from secureafl.runs.layout import (
    EVENTS,
    EXPERIMENT,
    PACE,
    PROBLEM,
    PROVENANCE,
    RESULT,
    read_json,
)
from secureafl.runs.pace import Pace
from secureafl.runs.tail import Block, Tail
from secureafl.toml import read_toml

FINISHED, RUNNING, QUIET = "finished", "running", "quiet"
QUIET_SECONDS = 15.0  # without a new event, a run counts as quiet: slow, stopped or killed
_LARGEST_FILE = 4 * 2**20


class Watch:
    """What one run folder holds, up to date; may be used from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.generation = 0  # changes when the events were read again from the start
        self.version = 0  # changes with everything there is to see
        self.settings: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self._reported: tuple[str, list[str]] | None = None
        self._files = {
            name: _File(path / name, read)
            for name, read in (
                (EXPERIMENT, read_toml),
                (PROVENANCE, read_json),
                (RESULT, read_json),
            )
        }
        self._events, self._pace_lines = Tail(path / EVENTS), Tail(path / PACE)
        self.pace = Pace()
        self._altered: list[str] = []  # files that are not as the finished run left them
        self._compared: list[tuple[int, int, int]] = []  # what they were when they were looked at
        self._start_over()

    def _start_over(self) -> None:
        self.digest, self._lines = Digest(), 0
        self._damaged, self._first_damage = 0, ""
        self._half, self._unreadable = False, ""

    def refresh(self) -> bool:
        """Look at the folder again; True if there is more to read at once."""
        with self.lock:
            self._read_small_files()
            self._follow_pace()
            more = self._follow_events()
            reported = (self.state, self.problems)
            self.version += reported != self._reported  # a run gets quiet as time goes by
            self._reported = reported
            return more

    def _read_small_files(self) -> None:
        for file in self._files.values():
            self.version += file.refresh()
        self.settings = self._files[EXPERIMENT].found
        self.provenance = self._files[PROVENANCE].found
        self.result = self._files[RESULT].found
        self._compare_checksums()

    def _compare_checksums(self) -> None:
        files = (RESULT, *FILES) if self.result else ()
        seen = [stamp for name in files if (stamp := _stamp(self.path / name))]
        if seen != self._compared:
            self._compared, self._altered = seen, find_altered(self.path, self.result)

    def _follow_pace(self) -> None:
        try:
            block = self._pace_lines.read()
        except RunError:
            return  # a pace may be missing, and what else is wrong is said of the events
        if block.again:
            self.pace = Pace()
        self.pace.add(block.lines)
        self.version += bool(block.lines)

    def _follow_events(self) -> bool:
        try:
            block = self._events.read()
        except RunError as error:
            self._unreadable = str(error)
            return False
        self._unreadable = ""
        if block.again:
            self._start_over()
            self.generation += 1
            self.version += 1
        self._count(block)
        return block.more

    def _count(self, block: Block) -> None:
        found = parse(block.lines)
        self.digest.add(found.events)
        if found.damaged and not self._damaged:
            place, why = found.damaged[0]
            self._first_damage = f"line {self._lines + place + 1}, {why}"
        self._damaged += len(found.damaged)
        self._lines += len(block.lines)
        self._half = block.half
        self.version += bool(block.lines)

    @property
    def state(self) -> str:
        """The state of the run: finished, running or quiet."""
        if (self.path / RESULT).exists():
            return FINISHED
        age = self.age
        return RUNNING if age is not None and age < QUIET_SECONDS else QUIET

    @property
    def age(self) -> float | None:
        """Seconds since the last event was written."""
        try:
            return max(0.0, time.time() - (self.path / EVENTS).stat().st_mtime)
        except OSError:
            return None

    @property
    def problems(self) -> list[str]:
        """What is wrong with the folder, for people; empty if nothing is."""
        if not self.path.is_dir():
            return [f"{self.path}: the run folder is gone; what is shown is the last that was read"]
        found = [file.problem for file in self._files.values() if file.problem]
        found += self._altered
        if told := self._told():
            found.append(told)
        if self._unreadable:
            found.append(self._unreadable)
        elif not (self.path / EVENTS).exists():
            found.append(f"{EVENTS}: missing; there is nothing to show until the run writes it")
        if self._damaged:
            lines = (
                "1 damaged line was"
                if self._damaged == 1
                else (f"{self._damaged:,} damaged lines were")
            )
            found.append(f"{EVENTS}: {lines} left out (the first: {self._first_damage})")
        if self._half and self.state != RUNNING:
            found.append(
                f"{EVENTS}: ends in half a line, so the run was killed or its disk is full; "
                "'secureafl resume' goes on from the last checkpoint"
            )
        return found

    def _told(self) -> str:
        """What the server of a deployment says is wrong."""
        try:
            text = (self.path / PROBLEM).read_text(errors="replace") if not self.result else ""
        except OSError:
            return ""
        return " ".join(text.split())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


class _File:
    """A small file of the folder, read again when it changes."""

    def __init__(self, path: Path, read: Callable[[Path], dict[str, Any]]) -> None:
        self._path, self._read = path, read
        self._seen: tuple[int, int, int] | None = None
        self.found: dict[str, Any] = {}
        self.problem = self._missing()

    def refresh(self) -> bool:
        """Read the file if it changed; whether it did."""
        seen = _stamp(self._path)
        if seen is None:
            changed, self._seen = self._seen is not None, None
            self.found, self.problem = {}, self._missing()
            return changed
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            if seen[1] > _LARGEST_FILE:
                raise RunError(f"{self._path}: larger than {_LARGEST_FILE:,} bytes")
            self.found, self.problem = self._read(self._path), ""
        except (SecureAflError, RecursionError) as error:
            self.found, self.problem = {}, f"{' '.join(str(error).split())}; it is not shown"
        return True

    def _missing(self) -> str:
        # A run has no result before its end.
        name = self._path.name
        return "" if name == RESULT else f"{name}: missing, so this is not a whole run folder"
