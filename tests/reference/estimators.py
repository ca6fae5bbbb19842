"""What a silent client would send, from the list of (gradient, base) it sent, oldest first."""

import itertools

import numpy as np
from reference.dense_bfgs import dense_bfgs


def last_update(sent, weights):
    """The last gradient."""
    return sent[-1][0]


def history_mean(sent, weights, length):
    """The mean of the last gradients."""
    return np.mean([gradient for gradient, _ in sent[-length:]], axis=0)


def lbfgs(sent, weights, buffer_size, min_curvature, max_correction):
    """g + B (w - w_base); the correction's norm is at most max_correction * ||g||."""
    gradient, base = sent[-1]
    pairs = curvature_pairs(sent, buffer_size, min_curvature)
    if not pairs:
        return gradient
    correction = dense_bfgs(*zip(*pairs, strict=True)) @ (weights - base)
    if not np.isfinite(correction).all():
        return gradient
    length, longest = np.linalg.norm(correction), max_correction * np.linalg.norm(gradient)
    return gradient + (correction * (longest / length) if length > longest else correction)


def curvature_pairs(sent, buffer_size, min_curvature):
    """The last pairs (s, y) of consecutive uploads with s'y > min_curvature * s's, s not zero."""
    pairs = []
    for (g_before, w_before), (g, w) in itertools.pairwise(sent):
        s, y = w - w_before, g - g_before
        if s @ s > 0 and s @ y > min_curvature * (s @ s):
            pairs.append((s, y))
    return pairs[-buffer_size:]
