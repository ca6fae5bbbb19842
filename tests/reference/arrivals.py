"""What the oracles of the defences are shown, and what they answer."""

from typing import NamedTuple

import numpy as np


class Seen(NamedTuple):
    """One arrival, as float64 arrays."""

    client: int
    round: int
    staleness: int
    gradient: np.ndarray
    base: np.ndarray
    weights: np.ndarray  # the model now
    rate: float
    verdict: bool  # the package's, for where rounding alone decides


class Outcome(NamedTuple):
    """What one arrival does."""

    accepted: bool
    stepped: bool
    direction: np.ndarray
    scores: dict


def at_most(value, bound, seen):
    """`value <= bound`; where they are equal up to rounding, either answer is right."""
    if np.isclose(value, bound, rtol=1e-9, atol=0):
        return seen.verdict
    return bool(value <= bound)


def refused(seen, scores):
    """The model stays as it is."""
    return Outcome(False, False, np.zeros_like(seen.weights), scores)


def applied(direction, scores):
    """The upload makes a step at once."""
    return Outcome(True, True, direction, scores)
