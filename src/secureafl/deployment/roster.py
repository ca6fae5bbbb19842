"""Who takes part in a deployment, and what became of what they sent: for operators and clients.

The ServerApp keeps one record per node and writes all of them into a file of the run folder.
`secureafl clients` shows it; of it, each client is told its own part (`deployment.status`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from secureafl.core.events import ArrivalEvent, Event
from secureafl.core.files import put_file
from secureafl.deployment.requests import Pause
from secureafl.deployment.slots import SlotRegistry
from secureafl.runs.layout import SERVER

if TYPE_CHECKING:
    from secureafl.experiment import Experiment

CLIENTS = Path(SERVER) / "clients.json"
RECENT = 20  # uploads of a client that an operator is shown together, and it is told of together
_WRITE_SECONDS = 2.0


class ClientRecord(NamedTuple):
    """One node as the server sees it; times are of the system's clock, 0: never."""

    node: int
    client: int | None = None  # its slot; None: it has none
    here: bool = False  # whether it is connected
    uploads: int = 0  # answers that were rounds
    accepted: int = 0  # of these
    recent: list[str] = []  # why each of the last was not accepted, "" if it was  # noqa: RUF012
    weight: float | None = None  # the defence gave its last upload; None: it gives none
    told_share: int | None = None  # accepted ones of the last whole RECENT of them
    last_round: int | None = None
    last_arrival: float = 0.0
    dropped: dict[str, int] = {}  # answers that were no round, by reason  # noqa: RUF012
    last_dropped: str = ""  # why its last answer was no round; "": it was one
    asked: float = 0.0  # since when a model is with it, 0: none is
    pause: str = ""  # why it is sent no model at present: a reason of `requests.Pause`
    until: float = 0.0  # when that ends


class RosterFile(NamedTuple):
    """All that the file says."""

    round: int
    rounds: int
    finished: bool
    slots: int  # how many clients there may be
    tell: str  # what clients may know of decisions on their uploads: `Options.tell_clients`
    clients: list[ClientRecord]
    still: int = 0  # uploads since the model last moved


def read_roster(run: Path) -> RosterFile | None:
    """What the ServerApp wrote last; None before the first time."""
    try:
        fields = json.loads((run / CLIENTS).read_bytes())
        clients = [ClientRecord(**record) for record in fields.pop("clients")]
        return RosterFile(clients=clients, **fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


class RosterReader:
    """The file as it is, read again when it has changed: every client asks for it all the time."""

    def __init__(self, run: Path) -> None:
        self._run, self._seen, self._found = run, (0, 0), read_roster(run)

    def read(self) -> RosterFile | None:
        """What the ServerApp wrote last."""
        try:
            facts = (self._run / CLIENTS).stat()
        except OSError:
            return None
        seen = facts.st_mtime_ns, facts.st_ino
        if seen != self._seen:
            self._seen, self._found = seen, read_roster(self._run)
        return self._found


class _Tally:
    """What is counted of one node."""

    def __init__(self) -> None:
        self.uploads = self.accepted = 0
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.weight: float | None = None
        self.told_share: int | None = None
        self.last_round: int | None = None
        self.last_arrival = 0.0
        self.dropped: Counter[str] = Counter()
        self.last_dropped = ""

    def add(self, event: ArrivalEvent, now: float) -> None:
        self.uploads += 1
        self.accepted += event.accepted
        self.recent.append("" if event.accepted else event.reason or "not_accepted")
        self.last_round, self.last_arrival = event.round, now
        self.weight, self.last_dropped = event.scores.get("weight"), ""
        if self.uploads % RECENT == 0:
            self.told_share = sum(not reason for reason in self.recent)


class Roster:
    """The records of a run, kept by its ServerApp."""

    def __init__(self, run: Path, experiment: Experiment, slots: SlotRegistry, tell: str) -> None:
        """`tell` is what clients may know of decisions on their uploads."""
        self._run, self._experiment, self._slots, self._tell = run, experiment, slots, tell
        self._tallies: dict[int, _Tally] = {}
        self._asked: dict[int, float] = {}
        self._written, self._still = 0.0, 0

    def recount(self, events: Iterable[Event]) -> None:
        """Count what was before this process."""
        for event in events:
            if isinstance(event, ArrivalEvent):
                self._note_step(event)
                node = self._slots.owner(event.client, event.round)
                if node is not None:
                    self._of(node).add(event, 0.0)

    def count(self, node: int, event: ArrivalEvent) -> None:
        """Note what became of an upload."""
        self._note_step(event)
        self._of(node).add(event, time.time())

    def _note_step(self, event: ArrivalEvent) -> None:
        self._still = 0 if event.stepped else self._still + 1

    def drop(self, node: int | None, reason: str) -> None:
        """Note an answer that was no round."""
        if node is not None:
            tally = self._of(node)
            tally.dropped[reason] += 1
            tally.last_dropped = reason

    def ask(self, node: int) -> None:
        """Note that a model was sent."""
        self._asked[node] = time.time()

    def write(
        self,
        round_: int,
        finished: bool,
        here: Collection[int],
        busy: Collection[int],
        pauses: dict[int, Pause],
    ) -> None:
        """Replace the file, every few seconds and at the end."""
        now = time.monotonic()
        if not finished and now - self._written < _WRITE_SECONDS:
            return
        self._written, known = now, {*self._tallies, *here}
        clients = [self._record(node, here, busy, pauses.get(node)) for node in sorted(known)]
        made = self._experiment
        facts = RosterFile(
            round_, made.rounds, finished, made.clients, self._tell, clients, self._still
        )
        fields = {**facts._asdict(), "clients": [client._asdict() for client in clients]}
        with contextlib.suppress(OSError):  # on a full disk, which is told of elsewhere
            put_file(self._run / CLIENTS, json.dumps(fields).encode())

    def _record(
        self, node: int, here: Collection[int], busy: Collection[int], pause: Pause | None
    ) -> ClientRecord:
        tally = self._of(node)
        return ClientRecord(
            node,
            self._slots.slot(node),
            node in here,
            tally.uploads,
            tally.accepted,
            list(tally.recent),
            tally.weight,
            tally.told_share,
            tally.last_round,
            tally.last_arrival,
            dict(tally.dropped),
            tally.last_dropped,
            self._asked.get(node, 0.0) if node in busy else 0.0,
            pause.why if pause else "",
            time.time() + pause.seconds if pause else 0.0,
        )

    def _of(self, node: int) -> _Tally:
        return self._tallies.setdefault(node, _Tally())
