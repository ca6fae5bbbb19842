"""Flower's list of nodes as `serve` saw it last, in a file for the ServerApp and for people.

The ServerApp sees which nodes are connected, but not which were put out for good: those need no
slot any more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from secureafl.core.files import put_file
from secureafl.deployment.slots import read_assignments
from secureafl.runs.layout import SERVER

NODES = Path(SERVER) / "nodes.json"


class Node(NamedTuple):
    """One node of a deployment."""

    number: int  # Flower's
    name: str  # of its key's file
    revoked: bool  # whether its key may no longer join


def write_nodes(run: Path, nodes: Sequence[Node]) -> None:
    """Replace the list."""
    put_file(run / NODES, json.dumps([node._asdict() for node in nodes]).encode())


def read_nodes(run: Path) -> list[Node]:
    """The list; empty where anybody may join, or until `serve` has written it again."""
    try:
        return [Node(**fields) for fields in json.loads((run / NODES).read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def describe_nodes(run: Path) -> list[str]:
    """A line for every node of a run that may take part: its key's name, number and slot."""
    slots = {line.client: line.node for line in read_assignments(run).lines}
    clients = {node: client for client, node in slots.items()}
    lines = []
    for node in sorted((n for n in read_nodes(run) if not n.revoked), key=lambda n: n.name):
        client = clients.get(node.number)
        slot = "no slot yet" if client is None else f"client {client}"
        lines.append(f"{node.name or 'without a name'}  node {node.number}  {slot}")
    return lines


class RevokedNodes:
    """Numbers of the nodes that were put out, read again when the list changes."""

    def __init__(self, run: Path) -> None:
        self._run, self._seen, self._found = run, (0, 0), frozenset[int]()

    def read(self) -> frozenset[int]:
        """All of them by now."""
        try:
            facts = (self._run / NODES).stat()
        except OSError:
            return self._found
        seen = facts.st_mtime_ns, facts.st_ino
        if seen != self._seen:
            self._seen = seen
            self._found = frozenset(n.number for n in read_nodes(self._run) if n.revoked)
        return self._found
