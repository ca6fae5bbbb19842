"""How much a client stands out, from what the server saw of it: never from who was planted.

Two signs, each between 0 (as everybody) and 1:

refusals   How much more often than the median client's its latest uploads were refused, as a
           share of how much more often they could be.
distance   1 - 1/k where its latest uploads lie k times as far from what the defence compares
           them with as the median upload of that time: 1/2 at twice as far, 9/10 at ten times.
           A defence that measures no distance leaves the length of the uploads.

Together: 1 - (1 - refusals)(1 - distance). Each upload weighs 0.95 of the client's next one, and
everybody is credited with two uploads like the median's: one bad upload is no verdict.
Where the median client is refused more often than not, the model is lost or the defence is at odds
with everybody: then nobody is suspected.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

DECAY = 0.95
CREDIT = 2.0
DISTANCES = ("distance", "norm")  # scores that say how far an upload lies; the first there counts
HIGH, RAISED = 0.75, 0.5  # from where on the page calls it so
LOST = 0.5  # usual refusals above which nobody is suspected
_WINDOW = 201  # uploads whose median distance is the typical one


class Typical:
    """The median of the latest distances, of all clients together."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def excess(self, distance: float) -> float:
        """The logarithm of how many times the median of those before this one is; counts it."""
        found, known = math.log(distance), self._sorted
        above = found - known[len(known) // 2] if known else 0.0
        self._latest.append(found)
        bisect.insort(known, found)
        if len(known) > _WINDOW:
            del known[bisect.bisect_left(known, self._latest.popleft())]
        return above


class Record:
    """What the server saw of one client lately."""

    __slots__ = ("excess", "measured", "refused", "weight")

    def __init__(self) -> None:
        self.weight = self.refused = 0.0
        self.measured = self.excess = 0.0

    def add(self, accepted: bool, excess: float | None) -> None:
        """Note one upload, and how far above the typical distance it lay."""
        self.weight = DECAY * self.weight + 1
        self.refused = DECAY * self.refused + (not accepted)
        if excess is not None:
            self.measured = DECAY * self.measured + 1
            self.excess = DECAY * self.excess + excess


class Signs(NamedTuple):
    """Between 0 and 1 each."""

    refusals: float
    distance: float

    @property
    def suspicion(self) -> float:
        """Both together."""
        return 1 - (1 - self.refusals) * (1 - self.distance)


def usual_refusals(records: Iterable[Record]) -> float:
    """The share of its latest uploads that the median client had refused."""
    return statistics.median([record.refused / record.weight for record in records] or [0.0])


def judge(records: Iterable[Record]) -> list[Signs]:
    """Each client beside the others."""
    records = list(records)
    usual = usual_refusals(records)
    if usual > LOST:
        return [Signs(0.0, 0.0)] * len(records)
    return [Signs(_refusals(record, usual), _distance(record)) for record in records]


def _refusals(record: Record, usual: float) -> float:
    share = (record.refused + CREDIT * usual) / (record.weight + CREDIT)
    return max(0.0, share - usual) / (1 - usual)


def _distance(record: Record) -> float:
    mean = record.excess / (record.measured + CREDIT)
    return 1 - math.exp(-max(0.0, mean))
