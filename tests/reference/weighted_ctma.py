"""Weighted CTMA with lists of uploads: momenta made anew each time, weights as fractions."""

import math
from fractions import Fraction

import numpy as np
from reference.arrivals import Outcome


def weighted_median(values, weights):
    """Of numbers, each as often as its whole weight says."""
    return np.median(np.repeat(values, weights, axis=0), axis=0)


def weighted_geometric_median(rows, weights, iterations=8, smoothing=1e-6):
    """Weiszfeld's iteration; first, a row weighs one over its lower median distance to all."""
    everybody = np.repeat(rows, weights, axis=0)
    apart = np.sort(np.linalg.norm(rows[:, None] - everybody, axis=2), axis=1)
    distances = apart[:, (len(everybody) - 1) // 2]
    for _ in range(iterations + 1):
        pulls = np.array(weights) / np.maximum(smoothing, distances)
        point = (pulls[:, None] * rows).sum(axis=0) / pulls.sum()
        distances = np.linalg.norm(rows - point, axis=1)
    return point


class WeightedCtmaServer:
    """`uploads` holds everything each client ever sent."""

    def __init__(self, n, malicious_share, centre, momentum):
        self.share, self.momentum = Fraction(str(malicious_share)), momentum
        self.needed = 2 * min(math.ceil(self.share * n), (n - 1) // 2) + 1
        self.centre = weighted_median if centre == "median" else weighted_geometric_median
        self.uploads = {}

    def receive(self, seen):
        self.uploads.setdefault(seen.client, []).append(seen.gradient)
        clients = sorted(self.uploads)
        rows = np.array([self._momentum(self.uploads[k]) for k in clients])
        counts = [len(self.uploads[k]) for k in clients]
        distances = np.linalg.norm(rows - self.centre(rows, counts), axis=1).astype(np.float32)
        distances[distances < 3e-7 * np.linalg.norm(rows, axis=1)] = 0  # rounding
        kept = self._kept(distances, counts)
        me = clients.index(seen.client)
        scores = {"distance": distances[me], "share": 1.0}
        if len(clients) < self.needed:
            return Outcome(True, False, np.zeros_like(seen.weights), scores)
        share = kept[me] / counts[me]
        scores["share"] = float(share)
        step = sum(float(k) * row for k, row in zip(kept, rows, strict=True)) / float(sum(kept))
        return Outcome(share > 0, True, step, scores)

    def _momentum(self, uploads):
        value = uploads[0]
        for upload in uploads[1:]:
            value = self.momentum * value + (1 - self.momentum) * upload
        return value

    def _kept(self, distances, counts):
        """How much of each client's weight is among the nearest ones."""
        left, kept = (1 - self.share) * sum(counts), [Fraction(0)] * len(counts)
        for place in np.argsort(distances, kind="stable"):
            kept[place] = min(left, Fraction(counts[place]))
            left -= kept[place]
        return kept
