"""A digest of the events of one run, whose size does not grow with the number of rounds."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event
from secureafl.runs.events import number
from secureafl.runs.suspicion import DISTANCES, ClientHistory, MedianDistance
from secureafl.runs.thinned import Thinned

CURVE_POINTS, SCORE_POINTS = 2000, 4000
LATEST = 40  # uploads, of all clients together
MARKS = 48  # uploads of one client that are shown one by one
_MOST_REASONS, _MOST_BARS = 50, 32
_UNKNOWN = "unknown_client"  # the reason of an upload whose client number is made up
# What defences decide by, the most informative first: a score, and the bound it is held against.
_DECIDING = (
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
    """Counts and latest values of one client."""

    __slots__ = (
        "accepted", "distance", "history", "last", "malicious", "marks", "reasons",
        "staleness", "total_staleness", "uploads",
    )  # fmt: skip

    def __init__(self) -> None:
        self.uploads = self.accepted = self.malicious = 0
        self.last = self.staleness = self.total_staleness = 0
        self.distance = math.nan
        self.reasons: Counter[str] = Counter()
        self.marks: deque[bool] = deque(maxlen=MARKS)
        self.history = ClientHistory()

    def add(self, event: ArrivalEvent, distance: float, excess: float | None) -> None:
        """Count one upload."""
        self.uploads += 1
        self.accepted += event.accepted
        self.malicious += event.malicious
        self.last, self.staleness = event.round, event.staleness
        self.total_staleness += event.staleness
        self.distance = distance
        self.marks.append(event.accepted)
        if not event.accepted:
            count(self.reasons, event.reason)
        self.history.add(event.accepted, excess)


class Digest:
    """What happened in a run so far."""

    def __init__(self) -> None:
        self.rounds = 0
        self.evaluations: Thinned[EvaluationEvent] = Thinned(CURVE_POINTS)
        self.scores: Thinned[Score] = Thinned(SCORE_POINTS)
        self.latest: deque[ArrivalEvent] = deque(maxlen=LATEST)
        self.staleness: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.clients: dict[int, Client] = {}
        self.accepted = self.uploads = self.malicious = 0
        self.measure: str | None = None  # the distance that suspicion rests on
        self.deciding: tuple[str, str | None] | None = None  # a score, and its bound
        self._median = MedianDistance()

    def add(self, events: Iterable[Event]) -> None:
        """Count more events, in their order."""
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
        self.malicious += event.malicious
        self.latest.append(event)
        self.staleness[event.staleness] += 1
        if not event.accepted:
            count(self.reasons, event.reason)
            if event.reason == _UNKNOWN:
                return
        if self.deciding is None or self.measure is None:
            self._choose(event)
        if self.deciding:
            self._note_score(event, *self.deciding)
        distance = number(event.scores.get(self.measure) if self.measure else None)
        excess = self._median.excess(distance) if distance > 0 else None
        client = self.clients.get(event.client)
        if client is None:
            client = self.clients[event.client] = Client()
        client.add(event, distance, excess)

    def _choose(self, event: ArrivalEvent) -> None:
        """Choose which scores to draw and to measure by: the first upload that has any decides."""
        if event.scores:
            self.deciding = next((pair for pair in _DECIDING if pair[0] in event.scores), None)
            self.measure = next((name for name in DISTANCES if name in event.scores), None)

    def _note_score(self, event: ArrivalEvent, name: str, bound: str | None) -> None:
        value = number(event.scores.get(name))
        if not math.isnan(value):
            one = (event.round, event.client, event.accepted, event.malicious)
            self.scores.add(Score(*one, value, number(event.scores.get(bound) if bound else None)))

    def staleness_bars(self) -> tuple[int, list[int]]:
        """A histogram: how many values of staleness a bar covers, and the uploads of each bar."""
        longest = max(self.staleness, default=0)
        width = longest // _MOST_BARS + 1
        bars = [0] * (longest // width + 1)
        for staleness, uploads in self.staleness.items():
            bars[staleness // width] += uploads
        return width, bars


def count(reasons: Counter[str], reason: str) -> None:
    """Count a reason; a defence has few of them, but a damaged file may have any number."""
    known = reason in reasons or len(reasons) < _MOST_REASONS
    reasons[reason if known else "other"] += 1
