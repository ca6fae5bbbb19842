"""Catalyst with dictionaries: uploads by model and client."""

import math
from fractions import Fraction

import numpy as np
from reference.arrivals import Outcome


def majority_group(distances):
    """Indices of the first connected group with more than half the points, as hops may grow."""
    count = len(distances)
    for hop in np.unique(np.append(distances, 0.0)):
        left = set(range(count))
        while left:
            group = [left.pop()]
            for point in group:
                near = {other for other in left if distances[point, other] <= hop}
                left -= near
                group += sorted(near)
            if 2 * len(group) > count:
                return sorted(group)
    return []


def cosine_distances(rows):
    """Between all pairs; a zero vector has cosine 0 with everything, itself excepted."""
    lengths = np.linalg.norm(rows, axis=1)
    units = rows / np.where(lengths, lengths, 1)[:, None]
    distances = np.maximum(1 - units @ units.T, 0)
    np.fill_diagonal(distances, 0)
    return distances


class CatalystServer:
    """Model v is the one after v steps; b is `malicious_share` of n, rounded up."""

    def __init__(self, n, malicious_share, max_lag):
        self.n, self.max_lag = n, max_lag
        self.b = min(math.ceil(Fraction(str(malicious_share)) * n), (n - 1) // 2)
        self.model_of_round = [0]  # which model is current before each arrival
        self.uploads, self.fresh, self.radius = {0: {}}, {0: set()}, {}

    def receive(self, seen):
        now = self.model_of_round[seen.round]
        model = self.model_of_round[seen.round - seen.staleness]
        taken = now - model <= self.max_lag
        if taken:
            self.uploads[model][seen.client] = seen.gradient
            self.fresh[model].add(seen.client)
        answers = len(self.uploads[now])
        ready = answers >= 2 * self.b + 1
        step = self._step(now) if ready else np.zeros_like(seen.weights)
        if ready:
            self.fresh = {model: set() for model in self.fresh}
            self.uploads[now + 1], self.fresh[now + 1] = {}, set()
        self.model_of_round.append(now + ready)
        lag = min(now - model, self.max_lag + 1)  # how far too old does not matter
        return Outcome(taken, ready, step, {"lag": lag, "answers": answers})

    def _step(self, now):
        norms = [np.linalg.norm(g) for g in self.uploads[now].values()]
        self.radius[now] = np.median(norms)
        current = self._kept(now)
        step = np.mean(current, axis=0)
        for model in range(max(0, now - self.max_lag), now):
            for late in self._kept(model):
                step = step + late / self.n
        return step

    def _kept(self, model):
        """Fresh uploads in the model's majority, clipped."""
        clients = sorted(self.uploads[model])
        rows = np.array([self.uploads[model][k] for k in clients])
        group = [clients[place] for place in majority_group(cosine_distances(rows))]
        kept = []
        for client in group:
            if client in self.fresh[model]:
                gradient = self.uploads[model][client]
                length = np.linalg.norm(gradient)
                kept.append(gradient * min(1, self.radius[model] / length) if length else gradient)
        return kept
