"""Aggregation rules over the rows of a matrix, all of them present."""

import math
from fractions import Fraction

import numpy as np


def mean(rows):
    """Arithmetic mean of each column."""
    return np.mean(rows, axis=0)


def median(rows):
    """Middle value of each column; of an even count the mean of the two middle ones."""
    return np.median(rows, axis=0)


def trimmed_mean(rows, share):
    """Mean of each column without its b smallest and b largest; b is share * n, rounded up."""
    count = len(rows)
    dropped = min(math.ceil(Fraction(str(share)) * count), (count - 1) // 2)
    return np.sort(rows, axis=0)[dropped : count - dropped].mean(axis=0)
