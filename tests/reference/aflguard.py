"""AFLGuard's norm test, and the test of the direction that the SecureAFL paper describes."""

import numpy as np
from reference.arrivals import applied, at_most, refused


class AflguardServer:
    """`own_gradient(weights)` is that of the trusted samples."""

    def __init__(self, own_gradient, closeness, form="distance"):
        self.own_gradient, self.closeness, self.form = own_gradient, closeness, form

    def receive(self, seen):
        own = self.own_gradient(seen.weights)
        if self.form == "alignment":
            return self._by_direction(seen, own)
        distance = np.sqrt(np.sum((seen.gradient - own) ** 2))
        bound = self.closeness * np.sqrt(np.sum(own**2))
        scores = {"distance": distance, "bound": bound}
        near = at_most(distance, bound, seen)
        return applied(seen.gradient, scores) if near else refused(seen, scores)

    @staticmethod
    def _by_direction(seen, own):
        product, squares = np.sum(seen.gradient * own), np.sum(seen.gradient**2) * np.sum(own**2)
        scores = {"cosine": product / np.sqrt(squares) if squares else 0.0}
        aligned = at_most(0.0, product, seen) and product != 0
        return applied(seen.gradient, scores) if aligned else refused(seen, scores)
