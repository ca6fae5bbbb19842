"""Client slots: which node, known to Flower by a number, is which client of the defence.

The defence remembers by slot. A node that returns gets its slot back; a new one gets a free slot,
or that of a client the defence has forgotten. Every change is on disk before it counts. After a
restart the arrivals are gone through again, so a change of an earlier owner's is told by its round.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import RunError

SLOTS = "slots.jsonl"


class Assignment(NamedTuple):
    """One line of the file: from `round` on the node has the slot."""

    round: int
    node: int
    client: int


class Assignments(NamedTuple):
    """What the file holds up to its first fault."""

    lines: list[Assignment]
    end: int  # bytes up to there
    fault: str  # what is wrong there; empty: nothing, or a last line that a kill has cut


def read_assignments(folder: Path) -> Assignments:
    """Read the file of a run."""
    path = folder / SLOTS
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    lines: list[Assignment] = []
    end = 0
    for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
        found = _decode(line, len(lines))
        if found is None:
            return Assignments(lines, end, f"{SLOTS} is damaged at its line {len(lines) + 1}")
        lines.append(found)
        end += len(line)
    return Assignments(lines, end, "")


def _encode(line: Assignment, place: int) -> bytes:
    return json.dumps({**line._asdict(), "checksum": _checksum(line, place)}).encode() + b"\n"


def _decode(line: bytes, place: int) -> Assignment | None:
    try:
        fields = json.loads(line)
        checksum, found = fields.pop("checksum"), Assignment(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if checksum == _checksum(found, place) else None


def _checksum(line: Assignment, place: int) -> int:
    """Of what a line says and of its place, so that none can be missing or twice there."""
    return zlib.crc32(repr((place, *line)).encode())


class SlotRegistry:
    """Slots 0 to capacity - 1."""

    def __init__(self, folder: Path, capacity: int, forget_after: int) -> None:
        """Read what the file says, but for a last line that a kill has cut."""
        self._capacity, self._forget_after = capacity, forget_after
        self._path = folder / SLOTS
        self._slots: dict[int, int] = {}  # by node
        self._owners: dict[int, int] = {}  # node by slot
        self._since: dict[int, int] = {}  # round from which the owner has the slot
        self._released: set[int] = set()  # forgotten slots, which still have an owner
        self._unused: dict[int, int] = {}  # slots never uploaded from, by round of assignment
        found = read_assignments(folder)
        if found.fault:
            raise RunError(f"{folder}: {found.fault}; put it back from a copy")
        if self._path.exists() and self._path.stat().st_size > found.end:
            os.truncate(self._path, found.end)
        self.lines = 0  # of the file
        for line in found.lines:
            self._apply(line)

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, node: int) -> int | None:
        """The slot a node has."""
        return self._slots.get(node)

    def owner(self, client: int, at_round: int) -> int | None:
        """The node that has a slot, if it had it in that round already."""
        since = self._since.get(client)
        return self._owners[client] if since is not None and since <= at_round else None

    def assign(self, node: int, now: int) -> int | None:
        """The slot of a node, given to it now if it has none; None: there is none left."""
        if node in self._slots:
            return self._slots[node]
        never_assigned = set(range(self._capacity)) - self._owners.keys()
        left = never_assigned or self._released or self._long_unused(now)
        if not left:
            return None
        line = Assignment(now, node, min(left))
        self._write(line)
        self._apply(line)
        return line.client

    def release(self, client: int, now: int) -> None:
        """The defence forgot the client after `now` arrivals; its slot may go to another node."""
        if self._since.get(client, now) < now:
            self._released.add(client)

    def remove(self, node: int) -> None:
        """The defence has forgotten a node that was put out; its slot may go to another."""
        if node in self._slots:
            self._released.add(self._slots[node])

    def is_released(self, client: int) -> bool:
        """Whether the slot may go to another node."""
        return client in self._released

    def mark_active(self, client: int, now: int) -> None:
        """The client has uploaded in round `now`; its slot is its own (again)."""
        if self._since.get(client, 0) <= now:
            self._released.discard(client)
            self._unused.pop(client, None)

    def _long_unused(self, now: int) -> set[int]:
        """Slots of nodes that never uploaded, for long: the defence has nothing to forget."""
        if not self._forget_after:
            return set()
        return {c for c, since in self._unused.items() if now - since > self._forget_after}

    def _apply(self, line: Assignment) -> None:
        self.lines += 1
        before = self._owners.get(line.client)
        if before is not None:
            del self._slots[before]
        self._slots[line.node] = line.client
        self._owners[line.client] = line.node
        self._released.discard(line.client)
        self._unused[line.client] = self._since[line.client] = line.round

    def _write(self, line: Assignment) -> None:
        with self._path.open("ab") as file:
            file.write(_encode(line, self.lines))
            file.flush()
            os.fsync(file.fileno())
