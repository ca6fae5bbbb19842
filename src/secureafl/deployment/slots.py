"""Who sits where: a node's key, which Flower knows by a number, and its client slot.

The defence remembers by slot. A node that returns gets its slot back; a new one gets a free slot,
or that of a client the defence has forgotten. Every change is on disk before it counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import RunError

SLOTS = "members.jsonl"


class Seated(NamedTuple):
    """One line of the file: from `round` on the node has the slot."""

    round: int
    node: int
    client: int


class SlotRegistry:
    """Slots 0 to capacity - 1."""

    def __init__(self, folder: Path, capacity: int, forget_after: int) -> None:
        """Take up what the file says, but for a last line that a kill has cut."""
        self._capacity, self._forget_after = capacity, forget_after
        self._path = folder / SLOTS
        self._slots: dict[int, int] = {}  # by node
        self._owners: dict[int, int] = {}  # node by slot
        self._free: set[int] = set()  # forgotten slots, which still have an owner
        self._silent: dict[int, int] = {}  # slots never uploaded from, by round of seating
        for line in self._read():
            self._seat(line)

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, node: int) -> int | None:
        """The slot a node has."""
        return self._slots.get(node)

    def seat(self, node: int, now: int) -> int | None:
        """The slot of a node, given to it now if it has none; None: there is none left."""
        if node in self._slots:
            return self._slots[node]
        never_used = set(range(self._capacity)) - self._owners.keys()
        left = never_used or self._free or self._long_silent(now)
        if not left:
            return None
        line = Seated(now, node, min(left))
        self._write(line)
        self._seat(line)
        return line.client

    def forgotten(self, client: int) -> None:
        """The defence has forgotten the client; its slot may go to somebody else."""
        if client in self._owners:
            self._free.add(client)

    def heard(self, client: int) -> None:
        """The client has uploaded; its slot is its own (again)."""
        self._free.discard(client)
        self._silent.pop(client, None)

    def _long_silent(self, now: int) -> set[int]:
        """Slots of nodes that came and never uploaded: the defence has nothing to forget."""
        if not self._forget_after:
            return set()
        return {c for c, since in self._silent.items() if now - since > self._forget_after}

    def _seat(self, line: Seated) -> None:
        before = self._owners.get(line.client)
        if before is not None:
            del self._slots[before]
        self._slots[line.node] = line.client
        self._owners[line.client] = line.node
        self._free.discard(line.client)
        self._silent[line.client] = line.round

    def _read(self) -> list[Seated]:
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(self._path, len(whole))
            return [Seated(**json.loads(line)) for line in whole.splitlines()]
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{self._path}: damaged ({error})") from error

    def _write(self, line: Seated) -> None:
        with self._path.open("ab") as file:
            file.write(json.dumps(line._asdict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
