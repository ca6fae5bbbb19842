"""The filter's list Q and its quantile."""

import numpy as np


class LipschitzFilter:
    """Accept iff lambda is at most the alpha-quantile of Q, the new lambda included."""

    def __init__(self, alpha, window=0):
        self.alpha, self.window, self.factors = alpha, window, []

    def add(self, factor):
        """Append one lambda to Q; a window forgets the oldest beyond its size."""
        self.factors.append(float(factor))
        if self.window:
            self.factors = self.factors[-self.window :]

    @property
    def threshold(self):
        """The quantile, interpolated linearly; infinite while Q is empty."""
        if not self.factors:
            return np.inf
        return float(np.quantile(np.array(self.factors), self.alpha, method="linear"))
