"""AFLGuard's norm test."""

import numpy as np
from reference.arrivals import applied, at_most, refused


class AflguardServer:
    """`own_gradient(weights)` is that of the trusted samples."""

    def __init__(self, own_gradient, closeness):
        self.own_gradient, self.closeness = own_gradient, closeness

    def receive(self, seen):
        own = self.own_gradient(seen.weights)
        distance = np.sqrt(np.sum((seen.gradient - own) ** 2))
        bound = self.closeness * np.sqrt(np.sum(own**2))
        scores = {"distance": distance, "bound": bound}
        near = at_most(distance, bound, seen)
        return applied(seen.gradient, scores) if near else refused(seen, scores)
