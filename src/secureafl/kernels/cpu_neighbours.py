"""Trust from neighbours (`core.neighbours`) on a CPU, in NumPy; all clients given are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from secureafl.core import neighbours
from secureafl.core.peers import NOTHING
from secureafl.kernels.cpu_arrays import cosines, diagonal, lower_median, rise
from secureafl.linalg.rows import TINY

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def neighbour_weights(scaled: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """See `core.neighbours.neighbour_weights`; of inner products that are scaled already."""
    if len(scaled) < neighbours.FEWEST:
        return np.ones(len(scaled))
    along = scaled.mean(axis=1)
    products = scaled - along[:, None] - along + along.mean()
    positions, strength = _principal_axis(products)
    hidden = np.zeros_like(positions), positions * np.sqrt(strength)
    return np.minimum(*(_camp_weights(products, positions) for positions in hidden))


def _camp_weights(
    products: Float[np.ndarray, "n n"], hidden: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    camp, loss = np.zeros(len(products), bool), 1.0
    differences, clients, _ = _common_difference(products, hidden, camp)
    for limits in (
        (neighbours.APART, neighbours.QUITE_APART),
        (neighbours.FAR, neighbours.VERY_FAR),
    ):
        differences, clients, certainty = _common_difference(products, clients, camp)
        apart, camp = _split(differences)
        loss = loss * certainty * rise(apart, *limits)
        if loss == 0 or camp.sum() < neighbours.SMALLEST_CAMP:
            return np.ones(len(products))
    sides = (values - lower_median(values) for values in (differences, clients))
    return 1 - loss * (camp & (np.multiply(*sides) > 0))


def _common_difference(
    products: Float[np.ndarray, "n n"],
    hidden: Float[np.ndarray, " n"],
    excluded: Bool[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], float]:
    """See `core.neighbours.Difference`."""
    seen = products - np.outer(hidden, hidden)
    contrast = _contrast(seen, excluded)
    differences = contrast @ products @ contrast.T
    positions, strength = _principal_axis(differences)
    along = products @ (contrast.T @ positions)
    length = np.sqrt(max(positions @ contrast @ along, NOTHING))
    certainty = 1.0
    for part, whole, limits in (
        (strength, differences.trace(), (neighbours.COMMON, neighbours.MOST)),
        (strength, products.trace(), (neighbours.SMALL, neighbours.LARGE)),
        (seen.trace() ** 2, (seen**2).sum(), (neighbours.FEW_KINDS, neighbours.MANY_KINDS)),
    ):
        certainty *= rise(part / max(whole, NOTHING), *limits)
    return positions, along / length, float(certainty)


def _contrast(
    seen: Float[np.ndarray, "n n"], excluded: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    near = np.maximum(cosines(seen, NOTHING) - neighbours.NEAR, 0)
    np.fill_diagonal(near, 0)
    near[:, excluded] = 0
    total = near.sum(axis=1)
    share = total / (total + neighbours.FEW_NEIGHBOURS)
    return (diagonal(len(seen), 1.0) - near / np.maximum(total, TINY)[:, None]) * share[:, None]


def _principal_axis(products: Float[np.ndarray, "n n"]) -> tuple[Float[np.ndarray, " n"], float]:
    found = products[:, np.argmax(np.diagonal(products))]
    for _ in range(neighbours.POWERS):
        found = products @ (found / max(np.linalg.norm(found), TINY))
    strength = float(np.linalg.norm(found))
    return found / max(strength, TINY), strength


def _split(values: Float[np.ndarray, " n"]) -> tuple[float, Bool[np.ndarray, " n"]]:
    order, count = np.argsort(values, kind="stable"), len(values)
    number = np.arange(1, count)
    spread = values[order] - values.mean()
    between = spread.cumsum()[:-1] ** 2 * count / (number * (count - number))
    best = int(np.argmax(between)) + 1
    smaller = np.zeros(count, bool)
    if 2 * best != count:
        smaller[order[:best] if 2 * best < count else order[best:]] = True
    return between[best - 1] / max((spread**2).sum(), TINY), smaller
