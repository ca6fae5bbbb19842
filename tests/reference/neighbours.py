"""Trust from neighbours with whole vectors, loops and exact eigenvectors."""

import numpy as np


def lower_median(values):
    """The middle one, the smaller of two."""
    return sorted(values)[(len(values) - 1) // 2]


def rise(value, start, end):
    return min(1.0, max(0.0, (value - start) / (end - start)))


def neighbour_weights(histories, trust):
    """The product of two weights: with neighbours in all directions, and in all but the longest."""
    if len(histories) < 20:
        return [1.0] * len(histories)
    lengths = [np.linalg.norm(history) for history in histories]
    median = lower_median(lengths)
    shown = np.array(
        [h / max(size / 2, median, 1e-30) for h, size in zip(histories, lengths, strict=True)]
    )
    shown = shown - sum(t * h for t, h in zip(trust, shown, strict=True)) / max(sum(trust), 1e-30)
    longest = principal_direction(shown)
    found = [camp_weights(shown, way, trust) for way in (np.zeros_like(longest), longest)]
    weights = [one * other for one, other in zip(*found, strict=True)]
    return (
        weights
        if sum(1 - weight for weight in weights) < len(weights) / 2
        else [1.0] * len(weights)
    )


def principal_direction(vectors):
    return np.linalg.svd(vectors, full_matrices=False)[2][0]


def camp_weights(shown, hidden, trust):
    """Weights from a camp along the direction in which clients differ most from neighbours."""
    camp, everybody = set(), set(range(len(shown)))
    for turn in range(3):
        seen = shown - np.outer(shown @ hidden, hidden)
        voice = [0.0 if k in camp else trust[k] for k in range(len(shown))]
        differences = np.array([difference(shown, seen, k, voice) for k in range(len(shown))])
        if not differences.any():
            return [1.0] * len(shown)
        hidden = principal_direction(differences)
        places = differences @ hidden
        # The first direction only says where to look from.
        apart, camp = best_split(places) if turn else (0.0, set())
    usual = [k for k in everybody - camp if trust[k] >= 0.5 and differences[k].any()]
    trusted = [k for k in everybody if trust[k] >= 0.5]
    members = membership(places, shown @ hidden, camp, usual, trusted, differences)
    loss = float(len(shown) >= 20 and sum(members) >= 3)
    loss *= rise((places**2).sum() / (differences**2).sum(), 0.35, 0.45)
    loss *= rise((places**2).sum() / (shown**2).sum(), 0.02, 0.03)
    loss *= rise(apart, 0.68, 0.72)
    variances = np.linalg.svd(seen, compute_uv=False) ** 2
    loss *= rise(variances.sum() ** 2 / (variances**2).sum(), 2.5, 3.5)
    loss *= rise((seen**2).sum() / (shown**2).sum(), 0.12, 0.2)
    if loss:
        usual = variance(seen, [1.0] * len(seen))
        noise = min(left_by_neighbours(seen, differences, places, voice) / usual, 0.9)
        loss *= rise((variance(seen, members) / usual - noise) / (1 - noise), 0.2, 0.35)
    return [1 - loss * member for member in members]


def left_by_neighbours(seen, differences, places, voice):
    """The variance outside the direction, of differences that would all count in full."""
    shares = []
    for k, own in enumerate(seen):
        near = [
            max(0.0, own @ other / (np.linalg.norm(own) * np.linalg.norm(other)) - 0.6) * heard
            for number, (other, heard) in enumerate(zip(seen, voice, strict=True))
            if number != k
        ]
        shares.append(sum(near) / (sum(near) + 0.3))
    return ((differences**2).sum() - (places**2).sum()) / sum(share**2 for share in shares)


def membership(places, clients, camp, usual, trusted, differences):
    """By the distance from the median: in deviations of usual clients, and in the camp's mean."""
    middle = lower_median([places[k] for k in usual])
    centre = lower_median([clients[k] for k in trusted])
    deviation = 1.4826 * lower_median([abs(places[k] - middle) for k in usual]) + 1e-30
    mean = np.mean([places[k] - middle for k in camp]) if camp else 0.0
    found = []
    for place, client, own in zip(places, clients, differences, strict=True):
        far, out = (place - middle) * np.sign(mean), (client - centre) * np.sign(mean)
        member = rise(min(far, out) / abs(mean), 0.25, 0.5) if mean else 0.0
        found.append(member * rise(far / deviation, 3, 5) if own.any() else 0.0)
    return found


def variance(vectors, weights):
    """Mean squared distance from the weighted mean, without its bias for few vectors."""
    shares = np.array(weights) / sum(weights)
    mean = shares @ vectors
    spread = sum(s * ((v - mean) ** 2).sum() for s, v in zip(shares, vectors, strict=True))
    return spread / (1 - (shares**2).sum())


def difference(shown, seen, k, voice):
    """A client less the mean of its neighbours, near by what is seen of them."""
    near, total = np.zeros(shown.shape[1]), 0.0
    for other in range(len(shown)):
        lengths = np.linalg.norm(seen[k]) * np.linalg.norm(seen[other])
        cosine = seen[k] @ seen[other] / lengths if lengths else 0.0
        share = max(0.0, cosine - 0.6) * voice[other] if other != k else 0.0
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
