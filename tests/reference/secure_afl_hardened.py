"""The hardened SecureAFL with lists and loops, client by client."""

import math

import numpy as np
from reference.arrivals import Outcome, at_most


def lower_median(values):
    """The middle one, the smaller of two."""
    return sorted(values)[(len(values) - 1) // 2]


def cosines_from(centre, histories):
    """Cosines between directions (unit vectors), seen from a centre."""
    moved = [history - centre for history in histories]
    lengths = [max(np.linalg.norm(vector), 1e-2) for vector in moved]
    return [
        [a @ b / (la * lb) for b, lb in zip(moved, lengths, strict=True)]
        for a, la in zip(moved, lengths, strict=True)
    ]


def similarity_weights(histories, similarity_penalty, disagreement_penalty):
    """Weights of clients, from their update histories."""
    count = len(histories)
    units = [r / np.linalg.norm(r) if np.linalg.norm(r) > 1e-15 else 0 * r for r in histories]
    weights = [1.0] * count
    for _ in range(3):
        centre = sum(w * u for w, u in zip(weights, units, strict=True)) / (sum(weights) or 1)
        cosines = cosines_from(centre, units)
        group_sizes = [max(1.0, sum(c**2 for c in row if c > 0)) for row in cosines]
        median = lower_median(group_sizes)
        capped = [min(1.0, median / size) ** similarity_penalty for size in group_sizes]
        shares = []
        for k, row in enumerate(cosines):
            support = sum(w * c**2 for w, c in zip(capped, row, strict=True) if c > 0)
            opposition = sum(w * c**2 for w, c in zip(capped, row, strict=True) if c < 0)
            support = max(support, capped[k])
            shares.append(support / (support + opposition))
        median = lower_median(shares)
        weights = [
            cap * min(1.0, share / median) ** disagreement_penalty
            for cap, share in zip(capped, shares, strict=True)
        ]
    return weights


def consistency_weights(stats, histories):
    """Weights from the share of each update history that is not what noise would leave."""
    shares = [
        (h @ h / max(s["mean_square"], 1e-30) - s["noise"]) / max(1 - s["noise"], 0.5)
        for s, h in zip(stats, histories, strict=True)
    ]
    rated = [s["noise"] < 0.5 for s in stats]
    median = [share for share, r in zip(shares, rated, strict=True) if r]
    median = lower_median(median) if median else math.inf
    if not 0 < median < math.inf:
        return [1.0] * len(stats)
    return [
        min(max(((share + 0.005) / median - 0.1) / 0.2, 0.0), 1.0) if r else 1.0
        for share, r in zip(shares, rated, strict=True)
    ]


def curvature_weights(stats, memory, among, credit=1):
    """Weights from the cosines between the model's moves and the uploads' changes."""
    median = [c["mean"] for c, a in zip(stats, among, strict=True) if a and c["count"] >= 3]
    median = lower_median(median) if median else math.inf
    weights = []
    for client, there in zip(stats, among, strict=True):
        if not there or client["count"] < 3 or not 0 < median < math.inf:
            weights.append(1.0)
            continue
        number = min(client["count"], round((1 + memory) / (1 - memory)))
        error = math.sqrt(client["variance"] / number)
        ratio = (client["mean"] + credit * error) / median
        weights.append(min(max((ratio - 0.25) / 0.5, 0.0), 1.0))
    return weights


class HardenedServer:
    """The server, with the statistics of its clients in dictionaries."""

    def __init__(
        self,
        n,
        clip_norm,
        clip_to_median_norm,
        short_momentum,
        long_momentum,
        arrival_decay,
        similarity_penalty,
        disagreement_penalty,
        consistency,
        curvature,
    ):
        self.n, self.clip_norm, self.clip_to_median_norm = n, clip_norm, clip_to_median_norm
        self.short_momentum, self.long_momentum = short_momentum, long_momentum
        self.arrival_decay = arrival_decay
        self.similarity_penalty = similarity_penalty
        self.disagreement_penalty = disagreement_penalty
        self.use_consistency, self.use_curvature = consistency, curvature
        self.now, self.last_round, self.sent, self.norms = 0, {}, {}, {}
        self.recent_update, self.update_history = {}, {}
        self.consistency, self.curvature = {}, {}

    def receive(self, seen):
        self._update_curvature(seen)
        self._update_momenta(seen)
        clients = sorted(self.recent_update)
        histories = [self.update_history[k] for k in clients]
        weights = [1.0] * len(clients)
        if self.use_consistency:
            weights = consistency_weights([self.consistency[k] for k in clients], histories)
        consistent = [weight > 0 for weight in weights]
        compared = [h for h, among in zip(histories, consistent, strict=True) if among]
        penalties = self.similarity_penalty, self.disagreement_penalty
        found = iter(similarity_weights(compared, *penalties))
        weights = [weight * next(found) if weight > 0 else 0.0 for weight in weights]
        if self.use_curvature:
            stats = [self.curvature[k] for k in clients]
            found = curvature_weights(stats, self.long_momentum, consistent)
            weights = [w * c for w, c in zip(weights, found, strict=True)]
        mine = weights[clients.index(seen.client)]
        self.now += 1
        self.last_round[seen.client] = self.now
        ages = [self.now - self.last_round[k] for k in clients]
        weights = [w * self.arrival_decay**age for w, age in zip(weights, ages, strict=True)]
        total = sum(weights)
        direction = np.zeros_like(seen.weights)
        for weight, k in zip(weights, clients, strict=True):
            direction += weight / max(total, 1e-30) * self.recent_update[k]
        direction *= min(1, len(clients) / min(10, self.n))
        accepted = at_most(0.5, mine, seen)
        return Outcome(accepted, total > 0, direction, {"weight": mine})

    def _update_curvature(self, seen):
        mine = self.curvature.setdefault(seen.client, {"mean": 0.0, "variance": 0.0, "count": 0})
        if seen.client not in self.sent:
            return
        gradient, base = self.sent[seen.client]
        move, change = seen.base - base, seen.gradient - gradient
        product = np.linalg.norm(move) * np.linalg.norm(change)
        if product == 0:
            return
        rate = max(1 / (mine["count"] + 1), 1 - self.long_momentum)
        deviation = move @ change / product - mine["mean"]
        mine["mean"] += rate * deviation
        mine["variance"] = (1 - rate) * (mine["variance"] + rate * deviation**2)
        mine["count"] += 1

    def _update_momenta(self, seen):
        k, gradient = seen.client, seen.gradient
        length = np.linalg.norm(gradient)
        if k not in self.sent:
            length = min(length, self.clip_norm)
        self.sent[k], self.norms[k] = (gradient, seen.base), length
        if self.clip_to_median_norm:
            length = min(length, lower_median(list(self.norms.values())))
        whole = np.linalg.norm(gradient)
        upload = gradient * (length / whole) if whole > length else gradient
        momenta = (
            (self.recent_update, self.short_momentum),
            (self.update_history, self.long_momentum),
        )
        for kind, memory in momenta:
            kind[k] = memory * kind[k] + (1 - memory) * upload if k in kind else upload
        memory = self.long_momentum if k in self.consistency else 0.0
        before = self.consistency.get(k, {"mean_square": 0.0, "noise": 0.0})
        self.consistency[k] = {
            "mean_square": memory * before["mean_square"] + (1 - memory) * (upload @ upload),
            "noise": memory**2 * before["noise"] + (1 - memory) ** 2,
        }
