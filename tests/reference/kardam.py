"""Kardam with lists: coefficients of each client, and the last upload applied."""

import math
from fractions import Fraction

import numpy as np
from reference.arrivals import applied, at_most, refused


def lipschitz(gradient, base, other_gradient, other_base):
    """Change of the gradient per change of the model."""
    change = np.linalg.norm(gradient - other_gradient)
    moved = np.linalg.norm(base - other_base)
    if change == 0:
        return 0.0
    return change / moved if moved else np.inf


class KardamServer:
    """b is `malicious_share` of n, rounded up, as long as n >= 3b + 1."""

    def __init__(self, n, malicious_share, window, dampening, decay, escape, clip_norm):
        self.n, self.window, self.escape, self.clip_norm = n, window, escape, clip_norm
        self.b = min(math.ceil(Fraction(str(malicious_share)) * n), (n - 1) // 3)
        self.dampening, self.decay = dampening, decay
        self.sent, self.factors, self.senders, self.refusals = {}, {}, [], 0
        self.last = None  # (gradient, base) last applied

    def receive(self, seen):
        gradient = self._clipped(seen.gradient)
        self._note_own_factor(seen.client, gradient, seen.base)
        zero = np.zeros_like(gradient)
        factor = lipschitz(gradient, seen.base, *(self.last or (zero, zero)))
        threshold = self._threshold()
        weight = 1 / (1 + seen.staleness)
        if self.dampening == "exponential":
            weight = math.exp(-self.decay * seen.staleness)
        scores = {"lipschitz": factor, "threshold": threshold, "weight": weight}
        varied = self._varied(seen.client)
        # A refusal for another reason says nothing about a tie.
        smooth = at_most(factor, threshold, seen) if varied else factor <= threshold
        passed = smooth or (self.escape and self.refusals >= self.n)
        if not passed:
            self.refusals += 1
        if not (passed and varied):
            return refused(seen, scores)
        self.last, self.refusals = (gradient, seen.base), 0
        self.senders.append(seen.client)
        return applied(weight * gradient, scores)

    def _clipped(self, gradient):
        length = np.linalg.norm(gradient)
        if self.factors or length <= self.clip_norm:
            return gradient
        return gradient * self.clip_norm / length

    def _note_own_factor(self, client, gradient, base):
        if client in self.sent and np.linalg.norm(base - self.sent[client][1]) > 0:
            mine = self.factors.setdefault(client, [])
            mine.append(lipschitz(gradient, base, *self.sent[client]))
            del mine[: -self.window]
        self.sent[client] = gradient, base

    def _threshold(self):
        largest = sorted(max(mine) for mine in self.factors.values())
        if not largest:
            return np.inf
        return largest[math.ceil(len(largest) * Fraction(self.n - self.b, self.n)) - 1]

    def _varied(self, client):
        """Any 2b + 1 applied in a row come from at least b + 1 clients."""
        if len(self.senders) < 2 * self.b:
            return True
        recent = self.senders[len(self.senders) - 2 * self.b :]
        return len({*recent, client}) >= self.b + 1
