"""DnC with NumPy's singular value decomposition."""

import math
from fractions import Fraction

import numpy as np
from reference.share import assumed_malicious
from reference.splitmix import bits


def columns(draw, total, wanted):
    """One column of each of `wanted` stretches of equal width (up to rounding)."""
    drawn = bits(draw, wanted)
    edges = [place * total // wanted for place in range(wanted + 1)]
    return [edges[k] + drawn[k] % (edges[k + 1] - edges[k]) for k in range(wanted)]


def projections(rows):
    """Squared, on the top right singular vector of the centred rows; and the singular values."""
    centred = rows - rows.mean(axis=0)
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    return (centred @ vectors[0]) ** 2, values


def dnc(rows, share, draws, sampled, removed=1.0):
    """Mean of the rows that no draw leaves out; if there is none, of those the last one keeps."""
    malicious = assumed_malicious(len(rows), share)
    kept = max(1, len(rows) - math.ceil(Fraction(str(removed)) * malicious))
    good = set(range(len(rows)))
    for draw in draws:
        chosen = columns(draw, rows.shape[1], min(sampled, rows.shape[1]))
        scores, _ = projections(rows[:, chosen])
        latest = set(np.argsort(scores, kind="stable")[:kept].tolist())
        good &= latest
    return rows[sorted(good or latest)].mean(axis=0)
