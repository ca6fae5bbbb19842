"""Bulyan: a committee by repeated Krum, then the values nearest to its median."""

import numpy as np
from reference.krum import scores
from reference.share import assumed_malicious


def bulyan(rows, share):
    """n - 2f members, and of those n - 4f values per coordinate; at least one of each."""
    malicious = assumed_malicious(len(rows), share)
    left, members = list(range(len(rows))), []
    for _ in range(max(1, len(rows) - 2 * malicious)):
        best = left[int(np.argmin(scores(rows[left], malicious)))]
        left.remove(best)
        members.append(best)
    kept = max(1, len(members) - 2 * malicious)
    return np.array([_nearest_to_median(column, kept) for column in rows[members].T])


def _nearest_to_median(column, kept):
    middle = np.median(column)
    by_distance = sorted(column, key=lambda value: (abs(value - middle), value))
    return np.mean(by_distance[:kept])
