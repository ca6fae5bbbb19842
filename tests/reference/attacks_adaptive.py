"""The adaptive attack, gamma by gamma, with a whole median for each."""

import numpy as np

GAMMAS = np.arange(41) / 4


def crafted(rows, gamma):
    """mean - gamma * std * sign(median)."""
    return rows.mean(axis=0) - gamma * rows.std(axis=0) * np.sign(np.median(rows, axis=0))


def median_under(rows, upload, copies):
    """Median of the rows and of as many copies of one upload."""
    return np.median(np.vstack([rows, *[upload] * copies]), axis=0)


def damage(rows, gamma, copies):
    """-<median without, median with>."""
    return -np.median(rows, axis=0) @ median_under(rows, crafted(rows, gamma), copies)


def smallest_best(rows, copies):
    """The smallest gamma that comes within 1 % of the best."""
    found = [damage(rows, gamma, copies) for gamma in GAMMAS]
    good_enough = max(found) - 0.01 * abs(max(found))
    return next(g for g, one in zip(GAMMAS, found, strict=True) if one >= good_enough)


def most_harmful(answers):
    """Which of (accepted, ready, harm) is chosen, asked one after the other; None if none is."""
    chosen, most = None, -np.inf
    for number, (accepted, ready, harm) in enumerate(answers):
        if accepted and harm > most:
            chosen, most = number, harm
        if accepted and not ready:
            break
    return chosen


def toward(last, target, bound, moved):
    """m_last + min(1, bound * ||dw|| / ||m - m_last||) * (m - m_last)."""
    way = np.linalg.norm(target - last)
    return last + (min(1.0, bound * moved / way) if way else 1.0) * (target - last)
