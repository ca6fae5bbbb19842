"""Weiszfeld's iteration, and the sum of distances it makes small."""

import numpy as np


def geometric_median(rows, iterations, smoothing):
    """Each step is the mean with weights one over the distance, no distance below `smoothing`."""
    point = np.median(rows, axis=0)
    for _ in range(iterations):
        weights = np.array([1 / max(smoothing, np.linalg.norm(row - point)) for row in rows])
        point = (weights[:, None] * rows).sum(axis=0) / weights.sum()
    return point


def total_distance(rows, point):
    """What the geometric median minimises."""
    return sum(np.linalg.norm(row - point) for row in rows)
