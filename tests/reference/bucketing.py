"""Means of random groups."""

from reference.splitmix import permutation


def groups(values, present, draw, size):
    """Means of `size` clients present at a time, in the order of the draw."""
    order = permutation(draw, present)
    return [values[order[k : k + size]].mean(axis=0) for k in range(0, len(order), size)]
