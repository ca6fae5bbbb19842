"""FLTrust."""

import numpy as np


def fltrust(rows, trusted):
    """Rows brought to the trusted length, averaged by their cosine to it if that is positive."""
    own = np.linalg.norm(trusted)
    total, weight = np.zeros_like(trusted), 0.0
    for row in rows:
        length = np.linalg.norm(row)
        if length > 0 and own > 0:
            trust = max(0.0, row @ trusted / (length * own))
            total, weight = total + trust * row * (own / length), weight + trust
    return total / weight if weight > 0 else np.zeros_like(trusted)
