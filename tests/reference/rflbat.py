"""RFLBAT with its own k-means; meant for crowds that fall into clear clusters or none."""

import numpy as np


def plane(rows):
    """The first two principal components."""
    centred = rows - rows.mean(axis=0)
    _, _, vectors = np.linalg.svd(centred, full_matrices=False)
    return centred @ vectors[:2].T


def near(points, cut):
    """Whose sum of distances to the others is at most `cut` times the median one."""
    sums = np.array([sum(np.linalg.norm(p - q) for q in points) for p in points])
    return sums <= cut * np.median(sums)


def k_means(points, number, rng, restarts=8):
    """Labels and squared distances to the centres, best of several starts."""
    best = None
    for _ in range(restarts):
        centres = points[rng.choice(len(points), number, replace=False)]
        for _ in range(30):
            away = ((points[:, None] - centres) ** 2).sum(axis=2)
            labels = away.argmin(axis=1)
            groups = [points[labels == k] for k in range(number)]
            pairs = zip(groups, centres, strict=True)
            centres = np.array([g.mean(axis=0) if len(g) else c for g, c in pairs])
        spread = away.min(axis=1).sum()
        if best is None or spread < best[1]:
            best = labels, spread
    return best


def natural_clusters(points, rng, largest=10, references=5):
    """Labels for the first number of clusters whose gap is not clearly below the next one's.

    Also whether every decision was clear, whatever clouds are drawn for comparison.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    even = [rng.uniform(low, high, points.shape) for _ in range(references)]
    labels, last, clear = None, -np.inf, True
    for number in range(1, min(largest, len(points)) + 1):
        more, spread = k_means(points, number, rng)
        logs = np.log([k_means(cloud, number, rng)[1] for cloud in even])
        gap, slack = logs.mean() - np.log(spread), logs.std() * np.sqrt(1 + 1 / references)
        clear = clear and abs(last - (gap - slack)) > 0.25
        if last >= gap - slack:
            break
        labels, last = more, gap
    return labels, clear


def rflbat(rows, rng, first_cut=10.0, second_cut=4.0):
    """Mean of the cluster that points least alike, without outliers; and whether it is clear."""
    points = plane(rows)
    kept = np.flatnonzero(near(points, first_cut))
    labels, clear = natural_clusters(points[kept], rng)
    units = rows / np.linalg.norm(rows, axis=1)[:, None]
    typical = []
    for label in range(labels.max() + 1):
        inside = units[kept[labels == label]]
        typical.append(np.median((inside @ inside.T).mean(axis=1)) if len(inside) > 1 else 1.0)
    kept = kept[labels == int(np.argmin(typical))]
    return rows[kept[near(points[kept], second_cut)]].mean(axis=0), clear
