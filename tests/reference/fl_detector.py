"""FLDetector with lists: pairs, prediction errors of each client, and the dense BFGS matrix."""

import functools

import numpy as np
from reference import splitmix
from reference.arrivals import applied, refused
from reference.dense_bfgs import dense_bfgs
from reference.kmeans import upper_cluster, within

from secureafl.core.random import first_draw

REFERENCES, MIN_CURVATURE, RATED = 10, 1e-3, 3


def logs_within(numbers):
    """Logarithms of the sums of squares within one and within two clusters."""
    with np.errstate(divide="ignore"):
        return np.log(within([numbers])), np.log(upper_cluster(numbers, 2)[1])


@functools.cache
def gap_to_beat(n, rated):
    """How much tighter two clusters are than one among evenly spread numbers, and its error."""
    bits = splitmix.bits(first_draw(0, "gap"), REFERENCES * n)
    uniform = np.array([((number % 2**64 >> 11) + 0.5) / 2**53 for number in bits])
    one, two = np.array([logs_within(numbers) for numbers in uniform.reshape(-1, n)[:, rated]]).T
    return np.mean(one - two) + np.std(two) * np.sqrt(1 + 1 / REFERENCES)


class FlDetectorServer:
    """A client is rated once it has RATED errors; everybody is judged at each upload."""

    def __init__(self, n, window, buffer_size):
        self.n, self.window, self.buffer_size = n, window, buffer_size
        self.sent, self.pairs, self.latest, self.errors = {}, [], {}, {}
        self.sums, self.arrivals = None, 0

    def receive(self, seen):
        client, before = seen.client, self.sent.get(seen.client)
        self.sent[client] = seen.gradient, seen.base
        move = change = np.zeros_like(seen.weights)
        if before is not None:
            move, change = seen.base - before[1], seen.gradient - before[0]
            self._rate(client, move, change)
        suspected = self._suspected()
        mine = self.errors.get(client, [])
        scores = {
            "suspicion": np.mean(mine[-self.window :]) if mine else 0.0,
            "suspected": len(suspected),
        }
        good = client not in suspected
        self._add(move, change, good)
        return applied(seen.gradient, scores) if good else refused(seen, scores)

    def _rate(self, client, move, change):
        if not self.pairs:
            return
        matrix = dense_bfgs(*zip(*self.pairs[-self.buffer_size :], strict=True))
        self.latest[client] = error = np.linalg.norm(change - matrix @ move)
        mean = np.mean(list(self.latest.values()))
        self.errors.setdefault(client, []).append(error / mean if mean else 0.0)

    def _suspected(self):
        enough = min(RATED, self.window)
        rated = sorted(k for k, errors in self.errors.items() if len(errors) >= enough)
        if 2 * len(rated) <= self.n:
            return set()
        scores = np.array([np.mean(self.errors[k][-self.window :]) for k in rated])
        if np.ptp(scores) == 0:
            return set()
        scores = np.round((scores - scores.min()) / np.ptp(scores), 12)
        one, two = logs_within(scores)
        if one - two <= gap_to_beat(self.n, tuple(rated)):
            return set()
        return {k for k, upper in zip(rated, upper_cluster(scores, 2)[0], strict=True) if upper}

    def _add(self, move, change, good):
        if self.sums is None:
            self.sums = np.zeros_like(move), np.zeros_like(move)
        if good:
            self.sums = self.sums[0] + move, self.sums[1] + change
        self.arrivals += 1
        if self.arrivals % self.n == 0:
            s, y = self.sums
            if s @ s > 0 and s @ y > MIN_CURVATURE * (s @ s):
                self.pairs.append((s, y))
            self.sums = None
