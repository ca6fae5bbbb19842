"""Trust from neighbours with whole vectors, loops and exact eigenvectors."""

import numpy as np
from reference.trust_clipping import lower_median, rise


def neighbour_weights(histories):
    """The smaller weight of two: with neighbours in all directions, and in all but the longest."""
    lengths = [np.linalg.norm(history) for history in histories]
    median = lower_median(lengths)
    shown = np.array(
        [h / max(size / 2, median, 1e-30) for h, size in zip(histories, lengths, strict=True)]
    )
    shown = shown - shown.mean(axis=0)
    longest = principal_direction(shown)
    found = [camp_weights(shown, direction) for direction in (np.zeros_like(longest), longest)]
    return [min(pair) for pair in zip(*found, strict=True)]


def principal_direction(vectors):
    return np.linalg.svd(vectors, full_matrices=False)[2][0]


def camp_weights(shown, hidden):
    """Weights from camps along the direction in which clients differ most from neighbours."""
    camp, loss = set(), float(len(shown) >= 20)
    for start, end in ((-2, -1), (0.68, 0.72), (0.76, 0.82)):
        seen = shown - np.outer(shown @ hidden, hidden)
        differences = np.array([difference(shown, seen, k, camp) for k in range(len(shown))])
        if not differences.any():
            return [1.0] * len(shown)
        hidden = principal_direction(differences)
        if start < 0:
            continue  # the first only finds where to look from
        places, clients = differences @ hidden, shown @ hidden
        apart, camp = best_split(places)
        variances = np.linalg.svd(seen, compute_uv=False) ** 2
        loss *= rise(apart, start, end) * (len(camp) >= 3)
        loss *= rise((places**2).sum() / (differences**2).sum(), 0.4, 0.5)
        loss *= rise((places**2).sum() / (shown**2).sum(), 0.015, 0.03)
        loss *= rise(variances.sum() ** 2 / (variances**2).sum(), 3, 5)
    weights = []
    for k in range(len(shown)):
        place = places[k] - lower_median(list(places))
        client = clients[k] - lower_median(list(clients))
        weights.append(1 - loss if k in camp and place * client > 0 else 1.0)
    return weights


def difference(shown, seen, k, camp):
    """A client less the mean of its neighbours, near by what is seen of them, but for a camp."""
    near, total = np.zeros(shown.shape[1]), 0.0
    for other in range(len(shown)):
        lengths = np.linalg.norm(seen[k]) * np.linalg.norm(seen[other])
        share = (
            max(0.0, seen[k] @ seen[other] / lengths - 0.6)
            if other != k and other not in camp
            else 0.0
        )
        near, total = near + share * shown[other], total + share
    return (shown[k] - near / total) * total / (total + 0.3) if total else 0 * near


def best_split(values):
    """The share of the variance between two camps, at best, and the members of the smaller one."""
    order, best = np.argsort(values), (0.0, 0)
    for size in range(1, len(values)):
        low, high = values[order[:size]], values[order[size:]]
        gap = low.mean() - high.mean()
        between = size * (len(values) - size) / len(values) * gap**2
        best = max(best, (between / ((values - values.mean()) ** 2).sum(), size))
    share, size = best
    if 2 * size == len(values):
        return share, set()
    return share, set(order[:size] if 2 * size < len(values) else order[size:])
