"""FLAME without its noise."""

import numpy as np
from reference.foolsgold import cosine
from reference.linkage import majority


def cosine_distances(rows):
    """One minus the cosine of each pair."""
    return np.array([[1 - cosine(a, b) for b in rows] for a in rows])


def flame(rows):
    """Mean over the majority, each row clipped to the median length of all."""
    lengths = np.array([np.linalg.norm(row) for row in rows])
    typical = np.median(lengths)
    scale = [min(1, typical / length) if length > 0 else 1 for length in lengths]
    members = majority(cosine_distances(rows))
    return np.mean([rows[k] * scale[k] for k in members], axis=0)
