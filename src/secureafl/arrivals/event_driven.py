"""Arrivals as in a deployment: every client works at its own pace and answers when it is done.

A client takes the newest model, works for a random time around its own mean, uploads, and is
given the newest model again. Staleness follows from who is slow; there is no bound on it.
"""

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from secureafl.arrivals.trace import Trace
from secureafl.core.errors import require


@dataclass(frozen=True)
class EventDriven:
    """Job times are a client's mean times a random factor around 1."""

    speed_spread: float = 0.5  # sigma of the log-normal that the clients' mean times follow
    job_time: Literal["lognormal", "exponential", "constant"] = "lognormal"
    job_spread: float = 0.25  # sigma of a log-normal job time

    def __post_init__(self) -> None:
        require(self.speed_spread >= 0, "speed_spread", self.speed_spread, "give 0 or more")
        require(self.job_spread >= 0, "job_spread", self.job_spread, "give 0 or more")

    def draw(self, rounds: int, num_clients: int, rng: np.random.Generator) -> Trace:
        """The schedule."""
        pace = rng.lognormal(0.0, self.speed_spread, num_clients)
        jobs = self._factors(rounds + num_clients, rng)
        # Ties (constant times) go to the lower client number.
        waiting = [(pace[i] * jobs[i], i, 0) for i in range(num_clients)]
        heapq.heapify(waiting)
        trace = Trace(np.empty(rounds, int), np.empty(rounds, int), np.empty(rounds))
        for now in range(rounds):
            time, client, version = waiting[0]
            trace.client[now], trace.version[now], trace.time[now] = client, version, time
            done = time + pace[client] * jobs[num_clients + now]
            heapq.heapreplace(waiting, (done, client, now + 1))
        return trace

    def _factors(self, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.job_time == "lognormal":
            return rng.lognormal(0.0, self.job_spread, count)
        return rng.exponential(size=count) if self.job_time == "exponential" else np.ones(count)
