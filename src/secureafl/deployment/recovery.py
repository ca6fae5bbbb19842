"""What a run folder holds after whatever happened to it: a checkpoint, and the uploads after it.

Two checkpoints are kept, with the journals from the older one on: where the newer is damaged, the
older and two journals give the same state. `events.jsonl` says how many rounds were applied. If
the rest does not lead there, that is told and nothing is done, unless the loss is accepted; then
the damaged files stay beside the others, with `.damaged` in their names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent, Event
from secureafl.deployment.journal import (
    FORMAT,
    Content,
    Entry,
    Record,
    count_rounds,
    journal_path,
    journals,
    read_journal,
    refuse_format,
)
from secureafl.deployment.slots import SLOTS, Assignments, read_assignments
from secureafl.runs.checksums import EventsChecksum
from secureafl.runs.events import encode, last_events, parse
from secureafl.runs.folder import Checkpoint, RunFolder
from secureafl.runs.layout import CHECKPOINT, EVENTS

BEFORE = "checkpoint-before.safetensors"  # the one before the last
FACTS = "deployment"  # array of a checkpoint, which its checksum covers: the fields of _Facts


class _Facts(NamedTuple):
    format: int
    round: int
    records: int  # of the journal that begins with this round, which the checkpoint holds already
    slots: int  # lines that the file of slots had
    events_bytes: int
    events_checksum: int


class Recovered(NamedTuple):
    """Where a run can go on."""

    checkpoint: Checkpoint | None
    events_bytes: int  # what events.jsonl is to be cut back to; the entries' events follow
    records: list[Record]
    round: int  # where they lead to
    journal: int  # the round that names the journal to go on with
    journal_records: int  # all that it holds
    notes: list[str]  # what was damaged and could be made up for


class _Chain(NamedTuple):
    """What came after a checkpoint, from one journal or several."""

    records: list[Record]
    round: int  # where they lead to
    journal: int  # the last one, and what it holds
    content: Content


def make_facts(
    at_round: int, records: int, slots: int, events_bytes: int, events_checksum: int
) -> np.ndarray:
    """The array that a checkpoint says of itself."""
    facts = _Facts(FORMAT, at_round, records, slots, events_bytes, events_checksum)
    return np.array(facts, np.int64)


def keep_checkpoint(path: Path) -> None:
    """The last checkpoint becomes the one before the last; another is to follow."""
    if (path / CHECKPOINT).exists():
        (path / CHECKPOINT).replace(path / BEFORE)


def recover(folder: RunFolder, accept_loss: bool = False) -> Recovered:
    """Where the run can go on; raises, and changes nothing, if something is lost for good.

    With `accept_loss` it is set aside instead, and the run goes on with what is left.
    """
    path = folder.path
    found = _read(folder)
    if found.lost and not accept_loss:
        remedy = "put the files back from a copy, or go on with what is left: --accept-loss"
        raise RunError(f"{path}: {'; '.join(found.lost)}; {remedy}")
    chain, size = found.chain, found.facts.events_bytes
    _mend(path, chain, bool(found.lost), found.damaged)
    if found.slots.fault:
        _set_aside(path / SLOTS, copy=True)
        os.truncate(path / SLOTS, found.slots.end)
    if found.lost:
        _set_aside(path / EVENTS, copy=True)
        size = size if found.events_fit else _keep_whole_lines(path, size)
    held, notes = len(chain.content.records), found.notes
    return Recovered(found.checkpoint, size, chain.records, chain.round, chain.journal, held, notes)


def find_damage(run: Path) -> list[str]:
    """A line for everything that is damaged in an unfinished run; nothing is changed."""
    folder = RunFolder(run, deployed=True)
    try:
        found = _read(folder)
    finally:
        folder.close()
    made_up = "what was before it leads to the same state"
    return [f"{run}: {line}" for line in found.lost] or [
        f"{run}: {line}; {made_up}" for line in found.notes
    ]


class _Found(NamedTuple):
    checkpoint: Checkpoint | None
    facts: _Facts
    damaged: list[str]  # checkpoints
    chain: _Chain
    events_fit: bool  # whether the events before the checkpoint are those it was made with
    slots: Assignments
    lost: list[str]  # what cannot be made up for
    notes: list[str]


def _read(folder: RunFolder) -> _Found:
    path = folder.path
    checkpoint, facts, damaged = _read_checkpoint(folder)
    began = checkpoint.round if checkpoint else 0
    chain = _read_chain(path, began, facts.records)
    applied = _applied_rounds(path)
    lost, notes = [], [f"{name} is damaged" for name in damaged]
    if chain.round < applied:
        why = "; ".join([*notes, chain.content.fault or "the journals end before them"])
        lost.append(f"rounds {chain.round} to {applied - 1} were applied, but {why}")
    fits = _events_fit(path, facts)
    if not fits:
        lost.append(f"{EVENTS} was altered or cut before round {began}")
    slots = read_assignments(path)
    needed = max([facts.slots, *(r.slots for r in chain.records if isinstance(r, Entry))])
    if slots.fault or len(slots.lines) < needed:
        lost.append(slots.fault or f"{SLOTS} has {len(slots.lines)} of {needed} lines")
    return _Found(checkpoint, facts, damaged, chain, fits, slots, lost, notes)


def _read_checkpoint(folder: RunFolder) -> tuple[Checkpoint | None, _Facts, list[str]]:
    """The newest whole checkpoint, what it says of itself, and which are damaged."""
    damaged: list[str] = []
    for name in (CHECKPOINT, BEFORE):
        try:
            found = folder.load_checkpoint(name)
        except RunError:
            damaged.append(name)
            continue
        if found is None:
            continue
        said = [int(number) for number in found.tensors.pop(FACTS, [1])]
        if said[0] != FORMAT:
            refuse_format(folder.path / name, said[0])
        facts = _Facts(*said)
        if (facts.round, facts.events_bytes) == (found.round, found.events_bytes):
            return found, facts, damaged
        damaged.append(name)
    return None, _Facts(FORMAT, 0, 0, 0, 0, 0), damaged


def _read_chain(path: Path, began: int, held: int) -> _Chain:
    """What came after a checkpoint, which holds some records of its journal already.

    Where a journal ends that another begins with, that follows.
    """
    records: list[Record] = []
    number = began
    while True:
        content = read_journal(journal_path(path, number), number)
        records += content.records[held if number == began else 0 :]
        reached = began + count_rounds(records)
        if content.fault or reached == number or reached not in journals(path):
            return _Chain(records, reached, number, content)
        number = reached


def _applied_rounds(path: Path) -> int:
    """How many rounds the events tell of: they are written after the journal."""

    def rounds(events: Iterable[Event]) -> int:
        return max((e.round + isinstance(e, ArrivalEvent) for e in events), default=0)

    return rounds(last_events(path)) or rounds(parse(_lines(path)).events)


def _events_fit(path: Path, facts: _Facts) -> bool:
    """Whether the events before a checkpoint are those it was made with."""
    size = (path / EVENTS).stat().st_size
    whole = size >= facts.events_bytes
    return whole and EventsChecksum(path).advance(facts.events_bytes) == facts.events_checksum


def _mend(path: Path, chain: _Chain, lost: bool, damaged: list[str]) -> None:
    """Put out of the way what cannot be read."""
    journal, content = journal_path(path, chain.journal), chain.content
    for name in damaged:
        _set_aside(path / name)
    for number, later in journals(path).items():
        if number > chain.journal:
            _set_aside(later)
    if not content.fault or not journal.exists():
        return
    if lost or not content.cut:  # a record that a kill has cut was never applied
        _set_aside(journal, copy=True)
    if content.end:
        os.truncate(journal, content.end)
    else:
        journal.unlink()


def _keep_whole_lines(path: Path, size: int) -> int:
    """Drop damaged lines among the first bytes of the events, and what follows; the new size."""
    content = (path / EVENTS).read_bytes()[:size]
    kept = b"".join(map(encode, parse(content.split(b"\n")).events))
    with (path / EVENTS).open("r+b") as file:  # the file itself, which is locked
        file.write(kept)
        file.truncate()
        os.fsync(file.fileno())
    return len(kept)


def _set_aside(path: Path, copy: bool = False) -> None:
    """Keep a file under another name; with `copy` it stays, too."""
    number, aside = 1, path.with_name(f"{path.name}.damaged")
    while aside.exists():
        number, aside = number + 1, path.with_name(f"{path.name}.damaged-{number + 1}")
    if copy:
        shutil.copy2(path, aside)
    elif path.exists():
        path.replace(aside)


def _lines(path: Path) -> list[bytes]:
    return (path / EVENTS).read_bytes().split(b"\n")[:-1]
