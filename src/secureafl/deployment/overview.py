"""An operator's view of a deployment: who is in, who is slowed or not counted, and why.

All of it comes from what the server wrote down (reasons of events, pauses, connections), never
from which defence is at work.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from secureafl.deployment.messages import REFUSALS
from secureafl.deployment.nodes import read_nodes
from secureafl.deployment.requests import FAILURES, RATE
from secureafl.deployment.roster import ClientRecord, RosterFile, read_roster

IN, SLOWED, NOT_COUNTED, SILENT = "in", "slowed", "not counted", "silent"
NO_SLOT, GONE, OUT, ABSENT = "no slot", "gone", "out", "absent"

_SILENT_SECONDS = 120.0  # after which a model that was sent counts as unanswered
_WINDOW = 4  # last uploads, of which half and the very last must be refused to be "not counted"
_DROPS = 3  # reasons that fit into a line
_STILL = 2  # uploads for each slot without a move of the model that are worth telling


class Row(NamedTuple):
    """One client."""

    name: str  # of its key
    client: int | None
    state: str  # one of the words above
    why: str
    uploads: int
    accepted: int
    weight: float | None  # the defence gave its last upload, where it gives any
    seconds: float | None  # since its last upload; None: not known


class Overview(NamedTuple):
    """A run and its clients."""

    round: int
    rounds: int
    finished: bool
    slots: int
    rows: list[Row]
    still: int  # uploads since the model last moved

    def counts(self) -> dict[str, int]:
        """How many clients are in each state, in the order of the rows."""
        return dict(Counter(row.state for row in self.rows))

    @property
    def standstill(self) -> str:
        """That the model has not moved for long, and how many clients have uploaded; or "".

        A defence may wait for most of them before it moves the model.
        """
        if self.finished or self.still <= _STILL * self.slots:
            return ""
        came = sum(row.uploads > 0 for row in self.rows)
        told = f"{came} of {self.slots} clients have uploaded"
        return f"the model has not moved for {self.still} uploads: {told}"


def make_overview(run: Path, now: float) -> Overview:
    """The view at a time of the system's clock; empty before the server has begun."""
    found = read_roster(run) or RosterFile(0, 0, False, 0, "", [])
    nodes = {node.number: node for node in read_nodes(run)}
    rows = []
    for record in found.clients:
        node = nodes.pop(record.node, None)
        name = (node.name if node else "") or f"node {record.node}"
        gone = (OUT, "its key was revoked") if node and node.revoked else None
        state, why = gone or _judge(record, found, now)
        seconds = now - record.last_arrival if record.last_arrival else None
        counts = (record.uploads, record.accepted, record.weight, seconds)
        rows.append(Row(name, record.client, state, why, *counts))
    absent = (ABSENT, "never connected", 0, 0, None, None)
    rows += [Row(node.name, None, *absent) for node in nodes.values() if not node.revoked]
    order = [IN, SLOWED, NOT_COUNTED, SILENT, NO_SLOT, GONE, ABSENT, OUT]
    rows.sort(key=lambda row: (order.index(row.state), row.name))
    return Overview(found.round, found.rounds, found.finished, found.slots, rows, found.still)


def _judge(record: ClientRecord, run: RosterFile, now: float) -> tuple[str, str]:
    """State of a client, and why; the first that holds."""
    if not record.here:
        return GONE, "not connected"
    if record.client is None and not run.finished:
        return NO_SLOT, f"all {run.slots} slots are taken"
    if record.until > now:
        return SLOWED, f"{_pause(record)}; next model in {record.until - now:.0f} s"
    if record.asked and now - record.asked > _SILENT_SECONDS:
        return SILENT, f"was sent a model {now - record.asked:.0f} s ago"
    if record.last_dropped in REFUSALS:
        return NOT_COUNTED, f"not used: {_reasons(record.dropped)}"
    refused = [reason for reason in record.recent if reason]
    last = record.recent[-_WINDOW:]
    lately = len(last) == _WINDOW and bool(last[-1]) and 2 * last.count("") <= _WINDOW
    if refused:
        said = f"not accepted of its last {len(record.recent)}: {_reasons(refused)}"
        return NOT_COUNTED if lately else IN, said
    return IN, f"not used: {_reasons(record.dropped)}" if record.dropped else ""


def _pause(record: ClientRecord) -> str:
    if record.pause == RATE:
        return "answers too fast"
    said = {FAILURES: "its answers fail"}.get(record.pause, record.pause)
    return f"{said} ({record.last_dropped})" if record.last_dropped else said


def _reasons(found: list[str] | dict[str, int]) -> str:
    """How often each reason was given, the most frequent first."""
    common = Counter(found).most_common(_DROPS)
    return ", ".join(f"{count} {reason}" for reason, count in common)
