"""The paper's arrivals: client and staleness are uniform and independent.

There is no clock: a client may be drawn twice in a row, with the same model or an older one.
With churn, one of the present clients is drawn, and no model from before it joined.

As in Xie, Koyejo, Gupta, "Zeno++: robust fully asynchronous SGD", ICML 2020.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from secureafl.arrivals.churn import Churn
from secureafl.arrivals.trace import Trace
from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Int

_AWAY = -1


@dataclass(frozen=True)
class Uniform:
    """Draws client and staleness uniformly and independently."""

    max_staleness: int = 10  # tau_max
    churn: Churn = field(default_factory=Churn)

    def __post_init__(self) -> None:
        given = self.max_staleness
        require(given >= 0, "max_staleness", given, "give 0 (always the newest model) or more")

    def draw(self, rounds: int, num_clients: int, rng: np.random.Generator) -> Trace:
        """Draw the schedule of arrivals."""
        now = np.arange(rounds)
        if self.churn.off:
            client, joined = rng.integers(num_clients, size=rounds), np.zeros(rounds, int)
        else:
            client, joined = _among_present(self.churn, rounds, num_clients, rng)
        staleness = rng.integers(np.minimum(now - joined, self.max_staleness) + 1)
        return Trace(client, now - staleness, now.astype(float))


def _among_present(
    churn: Churn, rounds: int, num_clients: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " rounds"], Int[np.ndarray, " rounds"]]:
    """Draw a present client for each round; return it with the round it joined in."""
    changes = [(time, client) for client, time in enumerate(churn.first_joins(num_clients, rng))]
    heapq.heapify(changes)  # the next time each client joins or leaves
    present: list[int] = []
    since = np.full(num_clients, _AWAY)  # the round each client joined in
    drawn = np.empty(rounds, int)
    joined = np.empty(rounds, int)
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
        drawn[now] = present[rng.integers(len(present))]
        joined[now] = since[drawn[now]]
    return drawn, joined
