"""The hardened SecureAFL with lists and loops, client by client."""

import math

import numpy as np
from reference.arrivals import Outcome, at_most


def lower_median(values):
    """The middle one, the smaller of two."""
    return sorted(values)[(len(values) - 1) // 2]


def cosines_from(centre, records):
    """Between directions (unit vectors), seen from a centre."""
    moved = [record - centre for record in records]
    lengths = [max(np.linalg.norm(vector), 1e-2) for vector in moved]
    return [
        [a @ b / (la * lb) for b, lb in zip(moved, lengths, strict=True)]
        for a, la in zip(moved, lengths, strict=True)
    ]


def similarity_weights(records, similarity_penalty, disagreement_penalty):
    """Weights of clients, from what each said over a longer time."""
    count = len(records)
    units = [r / np.linalg.norm(r) if np.linalg.norm(r) > 1e-15 else 0 * r for r in records]
    weights = [1.0] * count
    for _ in range(3):
        centre = sum(w * u for w, u in zip(weights, units, strict=True)) / (sum(weights) or 1)
        cosines = cosines_from(centre, units)
        crowds = [max(1.0, sum(c**2 for c in row if c > 0)) for row in cosines]
        usual = lower_median(crowds)
        capped = [min(1.0, usual / crowd) ** similarity_penalty for crowd in crowds]
        shares = []
        for k, row in enumerate(cosines):
            backing = sum(w * c**2 for w, c in zip(capped, row, strict=True) if c > 0)
            blame = sum(w * c**2 for w, c in zip(capped, row, strict=True) if c < 0)
            backing = max(backing, capped[k])
            shares.append(backing / (backing + blame))
        usual = lower_median(shares)
        weights = [
            cap * min(1.0, share / usual) ** disagreement_penalty
            for cap, share in zip(capped, shares, strict=True)
        ]
    return weights


def constant(told):
    """Weights from how much of each record is not what noise would leave."""
    said = [
        (t["record"] @ t["record"] / max(t["loud"], 1e-30) - t["noise"]) / max(1 - t["noise"], 0.5)
        for t in told
    ]
    judged = [t["noise"] < 0.5 for t in told]
    usual = [s for s, j in zip(said, judged, strict=True) if j]
    usual = lower_median(usual) if usual else math.inf
    if not 0 < usual < math.inf:
        return [1.0] * len(told)
    return [
        min(max(((s + 0.005) / usual - 0.1) / 0.2, 0.0), 1.0) if j else 1.0
        for s, j in zip(said, judged, strict=True)
    ]


def curvature_weights(seen, memory, among):
    """Weights from the cosines between model moves and upload changes, newest last."""
    usual = [c["mean"] for c, a in zip(seen, among, strict=True) if a and c["count"] >= 3]
    usual = lower_median(usual) if usual else math.inf
    weights = []
    for client, there in zip(seen, among, strict=True):
        if not there or client["count"] < 3 or not 0 < usual < math.inf:
            weights.append(1.0)
            continue
        number = min(client["count"], round((1 + memory) / (1 - memory)))
        error = math.sqrt(client["variance"] / number)
        ratio = (client["mean"] + error) / usual
        weights.append(min(max((ratio - 0.25) / 0.5, 0.0), 1.0))
    return weights


class HardenedServer:
    """What every client said, in dictionaries."""

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
        bend,
    ):
        self.n, self.clip_norm, self.clip_to_median_norm = n, clip_norm, clip_to_median_norm
        self.short_momentum, self.long_momentum, self.arrival_decay = (
            short_momentum,
            long_momentum,
            arrival_decay,
        )
        self.now, self.said, self.consistency, self.told = 0, {}, consistency, {}
        self.similarity_penalty, self.disagreement_penalty, self.bend = (
            similarity_penalty,
            disagreement_penalty,
            bend,
        )
        self.sent, self.lengths, self.word, self.record, self.curvature = {}, {}, {}, {}, {}

    def receive(self, seen):
        self._note_bend(seen)
        self._remember(seen)
        clients = sorted(self.word)
        said = [1.0] * len(clients)
        if self.consistency:
            said = constant([self.told[k] | {"record": self.record[k]} for k in clients])
        among = [share > 0 for share in said]
        heard = [self.record[k] for k, share in zip(clients, said, strict=True) if share > 0]
        stands = iter(similarity_weights(heard, self.similarity_penalty, self.disagreement_penalty))
        weights = [share * next(stands) if share > 0 else 0.0 for share in said]
        if self.bend:
            bends = curvature_weights(
                [self.curvature[k] for k in clients], self.long_momentum, among
            )
            weights = [w * b for w, b in zip(weights, bends, strict=True)]
        mine = weights[clients.index(seen.client)]
        self.now += 1
        self.said[seen.client] = self.now
        ages = [self.now - self.said[k] for k in clients]
        weights = [w * self.arrival_decay**age for w, age in zip(weights, ages, strict=True)]
        total = sum(weights)
        direction = np.zeros_like(seen.weights)
        for weight, k in zip(weights, clients, strict=True):
            direction += weight / max(total, 1e-30) * self.word[k]
        direction *= min(1, len(clients) / min(10, self.n))
        accepted = at_most(0.5, mine, seen)
        return Outcome(accepted, total > 0, direction, {"weight": mine})

    def _note_bend(self, seen):
        mine = self.curvature.setdefault(seen.client, {"mean": 0.0, "variance": 0.0, "count": 0})
        if seen.client not in self.sent:
            return
        gradient, base = self.sent[seen.client]
        move, change = seen.base - base, seen.gradient - gradient
        lengths = np.linalg.norm(move) * np.linalg.norm(change)
        if lengths == 0:
            return
        rate = max(1 / (mine["count"] + 1), 1 - self.long_momentum)
        away = move @ change / lengths - mine["mean"]
        mine["mean"] += rate * away
        mine["variance"] = (1 - rate) * (mine["variance"] + rate * away**2)
        mine["count"] += 1

    def _remember(self, seen):
        k, gradient = seen.client, seen.gradient
        length = np.linalg.norm(gradient)
        if k not in self.sent:
            length = min(length, self.clip_norm)
        self.sent[k], self.lengths[k] = (gradient, seen.base), length
        if self.clip_to_median_norm:
            length = min(length, lower_median(list(self.lengths.values())))
        whole = np.linalg.norm(gradient)
        upload = gradient * (length / whole) if whole > length else gradient
        for kind, memory in ((self.word, self.short_momentum), (self.record, self.long_momentum)):
            kind[k] = memory * kind[k] + (1 - memory) * upload if k in kind else upload
        memory = self.long_momentum if k in self.told else 0.0
        before = self.told.get(k, {"loud": 0.0, "noise": 0.0})
        self.told[k] = {
            "loud": memory * before["loud"] + (1 - memory) * (upload @ upload),
            "noise": memory**2 * before["noise"] + (1 - memory) ** 2,
        }
