"""The events of one run, in room that does not grow with its rounds."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event
from secureafl.runs.suspicion import DISTANCES, Record, Typical
from secureafl.runs.thinned import Thinned

CURVE_POINTS, SCORE_POINTS = 2000, 4000
LATEST = 40  # uploads, of all clients together
MARKS = 48  # uploads of one client that are shown one by one
_MOST_REASONS, _MOST_BARS = 50, 32
_NOBODY = "unknown_client"  # such an upload names any number it likes
# What decisions rest on, the most telling first: a score, and the bound it is held against.
_TELLING = (
    ("lipschitz", "threshold"),
    ("distance", "bound"),
    ("entropy", "threshold"),
    ("cosine", None),
    ("score", None),
    ("weight", None),
    ("distance", None),
    ("norm", None),
)


class Score(NamedTuple):
    """One upload's score, beside its bound."""

    round: int
    client: int
    accepted: bool
    malicious: bool
    value: float
    bound: float


class Client:
    """What is known of one client."""

    __slots__ = (
        "accepted", "distance", "last", "marks", "poisoned", "reasons", "record",
        "staleness", "total_staleness", "uploads",
    )  # fmt: skip

    def __init__(self) -> None:
        self.uploads = self.accepted = self.poisoned = 0
        self.last = self.staleness = self.total_staleness = 0
        self.distance = math.nan
        self.reasons: Counter[str] = Counter()
        self.marks: deque[bool] = deque(maxlen=MARKS)
        self.record = Record()

    def add(self, event: ArrivalEvent, distance: float, excess: float | None) -> None:
        """Note one upload."""
        self.uploads += 1
        self.accepted += event.accepted
        self.poisoned += event.malicious
        self.last, self.staleness = event.round, event.staleness
        self.total_staleness += event.staleness
        self.distance = distance
        self.marks.append(event.accepted)
        if not event.accepted:
            count(self.reasons, event.reason)
        self.record.add(event.accepted, excess)


class Digest:
    """What happened so far."""

    def __init__(self) -> None:
        self.rounds = 0
        self.evaluations: Thinned[EvaluationEvent] = Thinned(CURVE_POINTS)
        self.scores: Thinned[Score] = Thinned(SCORE_POINTS)
        self.latest: deque[ArrivalEvent] = deque(maxlen=LATEST)
        self.staleness: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.clients: dict[int, Client] = {}
        self.accepted = self.uploads = self.poisoned = 0
        self.measure: str | None = None  # the distance that suspicion rests on
        self.telling: tuple[str, str | None] | None = None
        self._typical = Typical()

    def add(self, events: Iterable[Event]) -> None:
        """Take in more events, in their order."""
        for event in events:
            if isinstance(event, EvaluationEvent):
                self.evaluations.add(event)
                self.rounds = max(self.rounds, event.round)
            elif isinstance(event, ArrivalEvent):
                self._add_upload(event)

    def _add_upload(self, event: ArrivalEvent) -> None:
        self.rounds = max(self.rounds, event.round + 1)
        self.uploads += 1
        self.accepted += event.accepted
        self.poisoned += event.malicious
        self.latest.append(event)
        self.staleness[event.staleness] += 1
        if not event.accepted:
            count(self.reasons, event.reason)
            if event.reason == _NOBODY:
                return
        if self.telling is None or self.measure is None:
            self._choose(event)
        if self.telling:
            self._note_score(event, *self.telling)
        distance = _score(event, self.measure)
        excess = self._typical.excess(distance) if distance > 0 else None
        client = self.clients.get(event.client)
        if client is None:
            client = self.clients[event.client] = Client()
        client.add(event, distance, excess)

    def _choose(self, event: ArrivalEvent) -> None:
        """What to draw and what to measure by: the first upload that has scores decides."""
        if event.scores:
            self.telling = next((pair for pair in _TELLING if pair[0] in event.scores), None)
            self.measure = next((name for name in DISTANCES if name in event.scores), None)

    def _note_score(self, event: ArrivalEvent, name: str, bound: str | None) -> None:
        value = _score(event, name)
        if not math.isnan(value):
            one = (event.round, event.client, event.accepted, event.malicious)
            self.scores.add(Score(*one, value, _score(event, bound)))

    def staleness_bars(self) -> tuple[int, list[int]]:
        """How many stalenesses a bar covers, and how many uploads had these."""
        longest = max(self.staleness, default=0)
        width = longest // _MOST_BARS + 1
        bars = [0] * (longest // width + 1)
        for staleness, uploads in self.staleness.items():
            bars[staleness // width] += uploads
        return width, bars


def _score(event: ArrivalEvent, name: str | None) -> float:
    found = event.scores.get(name) if name else None
    return math.nan if found is None else found


def count(reasons: Counter[str], reason: str) -> None:
    """One more; a defence has few reasons, damaged files may have any number."""
    known = reason in reasons or len(reasons) < _MOST_REASONS
    reasons[reason if known else "other"] += 1
