"""SignGuard with mean shift written out."""

import numpy as np
from reference.splitmix import bits

_EDGE = 1 + 1e-9


def sign_shares(rows, draw, share):
    """Shares of positive, zero and negative entries in a random stretch, over the largest."""
    size = rows.shape[1]
    number = max(1, int(share * size))
    start = bits(draw, 1)[0] % (size - number + 1)
    part = rows[:, start : start + number]
    shares = np.array([[np.mean(r > 0), np.mean(r == 0), np.mean(r < 0)] for r in part])
    largest = shares.max(axis=0)
    return shares / np.where(largest > 0, largest, 1)


def bandwidth(points):
    """Mean distance to the (n // 2)-th nearest point, counting the point itself."""
    near = max(1, len(points) // 2)
    return np.mean([np.sort(np.linalg.norm(points - p, axis=1))[near - 1] for p in points])


def largest_cluster(points):
    """Members of the largest cluster of mean shift with a flat kernel, seeded at every point."""
    radius = bandwidth(points) * _EDGE
    if radius == 0:
        return np.ones(len(points), dtype=bool)
    modes = [_climb(point, points, radius) for point in points]
    strength = [_near(points, mode, radius).sum() for mode in modes]
    order = sorted(range(len(modes)), key=lambda k: (strength[k], *modes[k]), reverse=True)
    heads = []
    for k in order:
        if all(np.linalg.norm(modes[k] - head) > radius for head in heads):
            heads.append(modes[k])
    labels = []
    for point in points:
        away = [np.linalg.norm(point - head) for head in heads]
        labels.append(int(np.argmin(away)) if min(away) <= radius else -1)
    sizes = [labels.count(label) for label in range(len(heads))]
    return np.array(labels) == int(np.argmax(sizes))


def _near(points, centre, radius):
    return np.linalg.norm(points - centre, axis=1) <= radius


def _climb(centre, points, radius):
    while True:
        mean = points[_near(points, centre, radius)].mean(axis=0)
        if np.linalg.norm(mean - centre) <= 1e-12 * radius:
            return mean
        centre = mean


def sign_guard(rows, draw, shortest=0.1, longest=3.0, share=0.1):
    """Mean of the clipped rows of usual length and usual signs."""
    lengths = np.linalg.norm(rows, axis=1)
    typical = np.median(lengths)
    usual = (lengths > shortest * typical) & (lengths < longest * typical)
    both = usual & largest_cluster(sign_shares(rows, draw, share))
    kept = np.flatnonzero(both if both.any() else usual)
    if not len(kept):
        return np.zeros(rows.shape[1])
    return np.mean([rows[k] * min(1, typical / lengths[k]) for k in kept], axis=0)
