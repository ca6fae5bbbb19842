"""The paper's arrivals: client and staleness are uniform and independent.

There is no clock: a client may be drawn twice in a row, with the same model or an older one.
With churn, one of the present clients is drawn, and no model from before it joined. Malicious
clients may be drawn more often, and arrive before all others.

As in Xie, Koyejo, Gupta, "Zeno++: robust fully asynchronous SGD", ICML 2020.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from secureafl.arrivals.churn import Churn
from secureafl.arrivals.malicious import check_malicious, paces, precede, uploads_ahead
from secureafl.arrivals.trace import Trace
from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_AWAY = -1


@dataclass(frozen=True)
class Uniform:
    """Draws client and staleness uniformly and independently."""

    max_staleness: int = 10  # tau_max
    churn: Churn = field(default_factory=Churn)
    malicious_pace: float = 1.0  # how many times as often as an honest client a malicious one comes
    malicious_first: int = 0  # uploads of each malicious client before anybody else arrives

    def __post_init__(self) -> None:
        given = self.max_staleness
        require(given >= 0, "max_staleness", given, "give 0 (always the newest model) or more")
        check_malicious(self.malicious_pace, self.malicious_first)

    def draw(
        self, rounds: int, malicious: Bool[np.ndarray, " n"], rng: np.random.Generator
    ) -> Trace:
        """Draw the schedule of arrivals."""
        ahead = uploads_ahead(malicious, self.malicious_first, rounds)
        now, pace = np.arange(rounds - len(ahead)), paces(malicious, self.malicious_pace)
        if not self.churn.off:
            client, joined = _among_present(self.churn, len(now), pace, rng)
        elif _even(pace):
            client, joined = rng.integers(len(pace), size=len(now)), np.zeros_like(now)
        else:
            client = rng.choice(len(pace), size=len(now), p=pace / pace.sum())
            joined = np.zeros_like(now)
        staleness = rng.integers(np.minimum(now - joined, self.max_staleness) + 1)
        trace = precede(ahead, Trace(client, now - staleness, now.astype(float)))
        return trace._replace(time=np.arange(rounds, dtype=float))  # its clock counts rounds


def _even(pace: Float[np.ndarray, " n"]) -> bool:
    return bool((pace == pace[0]).all())


def _among_present(
    churn: Churn, rounds: int, pace: Float[np.ndarray, " n"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, " rounds"], Int[np.ndarray, " rounds"]]:
    """Draw a present client for each round; return it with the round it joined in."""
    changes = [(time, client) for client, time in enumerate(churn.first_joins(len(pace), rng))]
    heapq.heapify(changes)  # the next time each client joins or leaves
    present: list[int] = []
    since = np.full(len(pace), _AWAY)  # the round each client joined in
    drawn = np.empty(rounds, int)
    joined = np.empty(rounds, int)
    even = _even(pace)
    for now in range(rounds):
        # If no client is present, the next one to join comes at once.
        while changes[0][0] <= now or not present:
            time, client = changes[0]
            if time == np.inf:
                raise churn.nobody_left(now)
            if since[client] == _AWAY:
                present.append(client)
                since[client], rest = now, churn.until_leaving(rng)
            else:
                present.remove(client)
                since[client], rest = _AWAY, churn.until_return(rng)
            heapq.heapreplace(changes, (now + np.floor(rest) + 1, client))  # in whole rounds
        if even:
            drawn[now] = present[rng.integers(len(present))]
        else:
            drawn[now] = rng.choice(present, p=pace[present] / pace[present].sum())
        joined[now] = since[drawn[now]]
    return drawn, joined
