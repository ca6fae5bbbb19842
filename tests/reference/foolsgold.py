"""FoolsGold with its memory of summed updates."""

import numpy as np


def cosine(one, other):
    """Of the angle, to 12 digits; 0 with a zero vector."""
    length = np.linalg.norm(one) * np.linalg.norm(other)
    return round(float(one @ other / length), 12) if length > 0 else 0.0


class FoolsGold:
    """`sums` are the updates of each client so far, added up."""

    def __init__(self, clients, size):
        self.sums = np.zeros((clients, size))

    def aggregate(self, values, present):
        """The mean weighted by how unlike others each client present is."""
        known = np.flatnonzero(present)
        for k in known:
            self.sums[k] += values[k]
        weights = self.weights(self.sums[known])
        if not any(weights):
            weights = np.ones(len(known))
        return np.average(values[known], axis=0, weights=weights)

    @staticmethod
    def weights(sums):
        """1 minus the greatest (pardoned) cosine, scaled, through the logit, cut off."""
        count = len(sums)
        alike = np.array(
            [
                [cosine(a, b) if i != j else 0.0 for j, b in enumerate(sums)]
                for i, a in enumerate(sums)
            ]
        )
        most = alike.max(axis=1)
        for i in range(count):
            for j in range(count):
                if most[i] < most[j]:
                    alike[i, j] *= most[i] / most[j]
        unlike = np.clip(1 - alike.max(axis=1), 0, 1)
        if unlike.max() == 0:
            return np.zeros(count)
        unlike = np.minimum(unlike / unlike.max(), 0.99)
        with np.errstate(divide="ignore"):
            return np.clip(np.log(unlike / (1 - unlike)) + 0.5, 0, 1)
