"""Krum, client by client."""

import numpy as np
from reference.share import assumed_malicious


def scores(rows, malicious):
    """Sum of squared distances to the n - f - 2 nearest others, at least one of them."""
    count = len(rows)
    found = []
    for i in range(count):
        squares = sorted(float(np.sum((rows[i] - rows[j]) ** 2)) for j in range(count) if j != i)
        found.append(sum(squares[: max(1, count - malicious - 2)]))
    return found


def krum(rows, share):
    """The row with the smallest score."""
    return rows[int(np.argmin(scores(rows, assumed_malicious(len(rows), share))))]
