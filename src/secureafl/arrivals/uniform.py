"""The paper's arrivals: any client, any of the last models, each as likely.

There is no clock: a client may be drawn twice in a row, with the same model or an older one.

As in Xie, Koyejo, Gupta, "Zeno++: robust fully asynchronous SGD", ICML 2020.
"""

from dataclasses import dataclass

import numpy as np

from secureafl.arrivals.trace import Trace
from secureafl.core.errors import require


@dataclass(frozen=True)
class Uniform:
    """Client and staleness drawn uniformly and independently."""

    max_staleness: int = 10  # tau_max

    def __post_init__(self) -> None:
        given = self.max_staleness
        require(given >= 0, "max_staleness", given, "give 0 (always the newest model) or more")

    def draw(self, rounds: int, num_clients: int, rng: np.random.Generator) -> Trace:
        """The schedule."""
        client = rng.integers(num_clients, size=rounds)
        now = np.arange(rounds)
        staleness = rng.integers(np.minimum(now, self.max_staleness) + 1)
        return Trace(client, now - staleness, now.astype(float))
