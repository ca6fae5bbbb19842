"""Client slots: which node, known to Flower by a number, is which client of the defence.

The defence remembers by slot. A node that returns gets its slot back; a new one gets a free slot,
or that of a client the defence has forgotten. Every change is on disk before it counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import RunError

SLOTS = "slots.jsonl"


class Assignment(NamedTuple):
    """One line of the file: from `round` on the node has the slot."""

    round: int
    node: int
    client: int


class SlotRegistry:
    """Slots 0 to capacity - 1."""

    def __init__(self, folder: Path, capacity: int, forget_after: int) -> None:
        """Read what the file says, but for a last line that a kill has cut."""
        self._capacity, self._forget_after = capacity, forget_after
        self._path = folder / SLOTS
        self._slots: dict[int, int] = {}  # by node
        self._owners: dict[int, int] = {}  # node by slot
        self._released: set[int] = set()  # forgotten slots, which still have an owner
        self._unused: dict[int, int] = {}  # slots never uploaded from, by round of assignment
        for line in self._read():
            self._apply(line)

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, node: int) -> int | None:
        """The slot a node has."""
        return self._slots.get(node)

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

    def release(self, client: int) -> None:
        """The defence has forgotten the client; its slot may go to another node."""
        if client in self._owners:
            self._released.add(client)

    def mark_active(self, client: int) -> None:
        """The client has uploaded; its slot is its own (again)."""
        self._released.discard(client)
        self._unused.pop(client, None)

    def _long_unused(self, now: int) -> set[int]:
        """Slots of nodes that never uploaded, for long: the defence has nothing to forget."""
        if not self._forget_after:
            return set()
        return {c for c, since in self._unused.items() if now - since > self._forget_after}

    def _apply(self, line: Assignment) -> None:
        before = self._owners.get(line.client)
        if before is not None:
            del self._slots[before]
        self._slots[line.node] = line.client
        self._owners[line.client] = line.node
        self._released.discard(line.client)
        self._unused[line.client] = line.round

    def _read(self) -> list[Assignment]:
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(self._path, len(whole))
            return [Assignment(**json.loads(line)) for line in whole.splitlines()]
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{self._path}: damaged ({error})") from error

    def _write(self, line: Assignment) -> None:
        with self._path.open("ab") as file:
            file.write(json.dumps(line._asdict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
