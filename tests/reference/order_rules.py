"""Aggregation rules over the rows of a matrix, all of them present."""

import numpy as np
from reference.share import assumed_malicious


def mean(rows):
    """Arithmetic mean of each column."""
    return np.mean(rows, axis=0)


def median(rows):
    """Middle value of each column; of an even count the mean of the two middle ones."""
    return np.median(rows, axis=0)


def trimmed_mean(rows, share):
    """Mean of each column without its b smallest and b largest; b is share * n, rounded up."""
    dropped = assumed_malicious(len(rows), share)
    return np.sort(rows, axis=0)[dropped : len(rows) - dropped].mean(axis=0)
