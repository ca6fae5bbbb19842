"""Arrivals as in a deployment: every client works at its own pace and uploads when it is done.

A client takes the newest model, works for a random time around its own mean, uploads, and is
given the newest model again. Staleness follows from the clients' speeds and has no bound.
With churn, a client that is due to leave does so after its upload; when it returns it is given the
newest model. Malicious clients may be faster, and arrive before all others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from secureafl.arrivals.churn import Churn
from secureafl.arrivals.malicious import check_malicious, paces, precede, uploads_ahead
from secureafl.arrivals.trace import Trace
from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_JOINS = -1  # in place of a version: the client is given its model only now


@dataclass(frozen=True)
class EventDriven:
    """Draws each job time as the client's mean times a random factor around 1."""

    speed_spread: float = 0.5  # sigma of the log-normal that the clients' mean times follow
    job_time: Literal["lognormal", "exponential", "constant"] = "lognormal"
    job_spread: float = 0.25  # sigma of a log-normal job time
    churn: Churn = field(default_factory=Churn)
    malicious_pace: float = 1.0  # how many times as fast as an honest client a malicious one works
    malicious_first: int = 0  # uploads of each malicious client before anybody else arrives

    def __post_init__(self) -> None:
        require(self.speed_spread >= 0, "speed_spread", self.speed_spread, "give 0 or more")
        require(self.job_spread >= 0, "job_spread", self.job_spread, "give 0 or more")
        check_malicious(self.malicious_pace, self.malicious_first)

    def draw(
        self, rounds: int, malicious: Bool[np.ndarray, " n"], rng: np.random.Generator
    ) -> Trace:
        """Draw the schedule of arrivals."""
        ahead = uploads_ahead(malicious, self.malicious_first, rounds)
        usual = rng.lognormal(0.0, self.speed_spread, len(malicious))
        mean_time = usual / paces(malicious, self.malicious_pace)
        return precede(ahead, self._draw(rounds - len(ahead), mean_time, rng))

    def _draw(
        self, rounds: int, mean_time: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> Trace:
        """Draw the schedule of clients whose jobs take so long in the mean."""
        num_clients = len(mean_time)
        jobs = self._factors(rounds + num_clients, rng)
        work = mean_time * jobs[:num_clients]  # how long each client's next job takes
        joins = enumerate(self.churn.first_joins(num_clients, rng))
        # Ties (constant times) go to the lower client number.
        waiting = [(time, client, _JOINS) for client, time in joins]
        heapq.heapify(waiting)
        leaves = np.empty(num_clients)
        trace = Trace(np.empty(rounds, int), np.empty(rounds, int), np.empty(rounds))
        now = 0
        while now < rounds:
            time, client, version = waiting[0]
            if time == np.inf:
                raise self.churn.nobody_left(now)
            if version == _JOINS:
                leaves[client] = time + self.churn.until_leaving(rng)
                heapq.heapreplace(waiting, (time + work[client], client, now))
                continue
            trace.client[now], trace.version[now], trace.time[now] = client, version, time
            now += 1
            work[client] = mean_time[client] * jobs[num_clients + now - 1]
            if time < leaves[client]:
                heapq.heapreplace(waiting, (time + work[client], client, now))
            else:
                back = time + self.churn.until_return(rng)
                heapq.heapreplace(waiting, (back, client, _JOINS))
        return trace

    def _factors(self, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.job_time == "lognormal":
            return rng.lognormal(0.0, self.job_spread, count)
        return rng.exponential(size=count) if self.job_time == "exponential" else np.ones(count)
