"""How much a client stands out, from what the server saw of it: never from who was made malicious.

Two scores, each between 0 (like the other clients) and 1:

refusals   How much more often than the median client's its latest uploads were refused, as a
           share of how much more often they could be.
distance   1 - 1/k where its latest uploads lie k times as far from what the defence compares
           them with as the median upload of that time: 1/2 at twice as far, 9/10 at ten times.
           For a defence that measures no distance, the norm of the uploads takes its place.

Together: 1 - (1 - refusals)(1 - distance). Each upload weighs 0.95 of the client's next one, and
every client is credited with two uploads like the median's: one bad upload is not enough.
Where the median client is refused more often than not, the model has diverged or the defence
rejects everybody: then no client is suspected.
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
HIGH, RAISED = 0.75, 0.5  # from where on the page calls a suspicion so
MOST_REFUSED = 0.5  # median share of refused uploads above which no client is suspected
_WINDOW = 201  # uploads whose median distance the next one is compared with


class MedianDistance:
    """The running median of the latest distances, of all clients together."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def excess(self, distance: float) -> float:
        """The logarithm of the ratio to the median of those before; counts this one in."""
        found, known = math.log(distance), self._sorted
        above = found - known[len(known) // 2] if known else 0.0
        self._latest.append(found)
        bisect.insort(known, found)
        if len(known) > _WINDOW:
            del known[bisect.bisect_left(known, self._latest.popleft())]
        return above


class ClientHistory:
    """Decaying sums over the uploads of one client."""

    __slots__ = ("excess", "measured", "refused", "weight")

    def __init__(self) -> None:
        self.weight = self.refused = 0.0
        self.measured = self.excess = 0.0

    def add(self, accepted: bool, excess: float | None) -> None:
        """Count one upload, and how far above the median distance it lay, if that is known."""
        self.weight = DECAY * self.weight + 1
        self.refused = DECAY * self.refused + (not accepted)
        if excess is not None:
            self.measured = DECAY * self.measured + 1
            self.excess = DECAY * self.excess + excess

    @property
    def mean_excess(self) -> float:
        """The mean logarithm of the ratio to the median distance, credit included."""
        return self.excess / (self.measured + CREDIT)


class SuspicionScore(NamedTuple):
    """The two scores of a client, between 0 and 1 each."""

    refusals: float
    distance: float

    @property
    def suspicion(self) -> float:
        """Both scores together."""
        return 1 - (1 - self.refusals) * (1 - self.distance)


def median_refusal_share(histories: Iterable[ClientHistory]) -> float:
    """The share of its latest uploads that the median client had refused."""
    return statistics.median([one.refused / one.weight for one in histories] or [0.0])


def score_clients(histories: Iterable[ClientHistory]) -> list[SuspicionScore]:
    """Scores of all clients, each compared with the others."""
    histories = list(histories)
    median = median_refusal_share(histories)
    if median > MOST_REFUSED:
        return [SuspicionScore(0.0, 0.0)] * len(histories)
    return [SuspicionScore(_refusals(one, median), _distance(one)) for one in histories]


def _refusals(history: ClientHistory, median: float) -> float:
    share = (history.refused + CREDIT * median) / (history.weight + CREDIT)
    return max(0.0, share - median) / (1 - median)


def _distance(history: ClientHistory) -> float:
    return 1 - math.exp(-max(0.0, history.mean_excess))
