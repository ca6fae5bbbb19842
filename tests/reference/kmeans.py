"""k-means of numbers by trying every way to cut them."""

import itertools

import numpy as np


def within(groups):
    """Sum of squares around the groups' means."""
    return sum(np.square(group - np.mean(group)).sum() for group in groups if len(group))


def upper_cluster(values, clusters):
    """Mask of the highest cluster, and the sum of squares; the lowest of equally good cuts."""
    values = np.asarray(values, dtype=float)
    places = np.unique(values)[1:]  # a cut is below one of these
    if not len(places):
        return np.zeros(len(values), dtype=bool), within([values])
    whole, found = within([values]), []
    for cuts in itertools.combinations(places, min(clusters - 1, len(places))):
        edges = [-np.inf, *cuts, np.inf]
        groups = [values[(values >= a) & (values < b)] for a, b in itertools.pairwise(edges)]
        found.append((round(within(groups) / whole, 12), cuts[-1], within(groups)))
    _, cut, squares = min(found)
    return values >= cut, squares
