"""Uploads made of what others trained, client by client and number by number."""

from statistics import NormalDist

import numpy as np


def distance(one, other):
    """Euclidean."""
    return float(np.sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True))))


def perturbation(kind, rows):
    """The direction in which the mean is pushed away."""
    mean = rows.mean(axis=0)
    if kind == "std":
        return rows.std(axis=0)
    return np.sign(mean) if kind == "sign" else mean


def largest_within(fits):
    """The largest number that fits, by bisection; those that fit are an interval from 0."""
    low, high = 0.0, 1e-30
    while fits(high):
        low, high = high, 2 * high
        if high > 1e30:
            return 0.0  # the perturbation is zero: every number fits and none matters
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def min_max(rows, kind, strength):
    """m = mu - gamma p, no further from anybody than the two furthest from each other."""
    mean, along = rows.mean(axis=0), perturbation(kind, rows)
    along = along / (np.linalg.norm(along) or 1)
    bound = max(distance(one, other) for one in rows for other in rows)

    def fits(gamma):
        return max(distance(mean - gamma * along, g) for g in rows) <= bound

    return mean - strength * largest_within(fits) * along


def min_sum(rows, kind, strength):
    """m = mu - gamma p, whose squared distances add up to no more than anybody's."""
    mean, along = rows.mean(axis=0), perturbation(kind, rows)
    along = along / (np.linalg.norm(along) or 1)
    bound = max(sum(distance(one, other) ** 2 for other in rows) for one in rows)

    def fits(gamma):
        return sum(distance(mean - gamma * along, g) ** 2 for g in rows) <= bound

    return mean - strength * largest_within(fits) * along


def alie_deviations(clients, malicious):
    """z of n and b; 0 where the formula would ask to move the other way."""
    supporters = max(1, int(np.floor(clients / 2 + 1)) - malicious)
    honest = clients - malicious
    share = (honest - supporters) / max(honest, 1)
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


def alie(rows, z):
    """mu - z sigma in every coordinate."""
    return np.array([column.mean() - z * column.std() for column in rows.T])


class Mimic:
    """The warm-up of the mimics: running mean, Oja's rule, sums of z'g."""

    def __init__(self, direction, clients, warm_up):
        self.direction, self.warm_up = np.array(direction), warm_up
        self.mean, self.scores, self.steps = np.zeros_like(self.direction), np.zeros(clients), 0

    def chosen(self, gradients, honest):
        """Number of the client to copy after one more look at the honest ones."""
        numbers = np.flatnonzero(honest)
        if self.steps < self.warm_up:
            self._learn(gradients, numbers)
        return max(numbers, key=lambda i: (abs(self.scores[i]), -i))

    def _learn(self, gradients, numbers):
        t = self.steps
        self.mean = t / (1 + t) * self.mean + gradients[numbers].mean(axis=0) / (1 + t)
        away = [gradients[i] - self.mean for i in numbers]
        pull = sum((x @ self.direction) * x for x in away)
        if np.linalg.norm(pull) > 0:
            mixed = t / (1 + t) * self.direction + pull / np.linalg.norm(pull) / (1 + t)
            self.direction = mixed / np.linalg.norm(mixed)
        for i in numbers:
            self.scores[i] += self.direction @ gradients[i]
        self.steps += 1
