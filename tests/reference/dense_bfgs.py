"""The BFGS matrix by its textbook recursion, as a dense array."""

import numpy as np


def dense_bfgs(steps, changes):
    """B after all pairs (s, y), oldest first, starting from mu I with mu of the newest pair.

    B+ = B - B s s' B / s' B s + y y' / y' s;  mu = s' y / s' s.
    """
    newest_step, newest_change = steps[-1], changes[-1]
    mu = (newest_step @ newest_change) / (newest_step @ newest_step)
    matrix = mu * np.eye(len(newest_step))
    for s, y in zip(steps, changes, strict=True):
        image = matrix @ s
        matrix = matrix - np.outer(image, image) / (s @ image) + np.outer(y, y) / (y @ s)
    return matrix
