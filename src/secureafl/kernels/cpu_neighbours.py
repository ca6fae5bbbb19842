"""Trust from neighbours (`core.neighbours`) on a CPU, in NumPy; all clients given are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from secureafl.core import neighbours
from secureafl.core.peers import FEWEST, NOTHING
from secureafl.kernels.cpu_arrays import cosines, diagonal, lower_median, rise
from secureafl.linalg.rows import TINY

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def neighbour_weights(
    scaled: Float[np.ndarray, "n n"], trust: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """See `core.neighbours.neighbour_weights`; of inner products that are scaled already."""
    if len(scaled) < FEWEST:
        return np.ones(len(scaled))
    centre = trust / max(trust.sum(), TINY)
    along = scaled @ centre
    products = scaled - along[:, None] - along + centre @ along
    positions, strength = _principal_axis(products)
    hidden = np.zeros_like(positions), positions * np.sqrt(strength)
    weights = np.multiply(*(_camp_weights(products, positions, trust) for positions in hidden))
    return weights if 2 * (1 - weights).sum() < len(weights) else np.ones(len(weights))


def _camp_weights(
    products: Float[np.ndarray, "n n"],
    hidden: Float[np.ndarray, " n"],
    voice: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    for _ in range(2):
        found = _common_difference(products, hidden, voice)
        hidden = found.clients
    _, camp = _split(found.differences)
    found = _common_difference(products, hidden, voice * ~camp)
    apart, camp = _split(found.differences)
    members = _members(found, camp, voice >= neighbours.TRUSTED)
    seen = products - np.outer(hidden, hidden)
    usual = max(_variance(seen, np.ones(len(seen))), NOTHING)
    noise = min(found.noise / usual, neighbours.NOISIEST)
    diversity = (_variance(seen, members) / usual - noise) / (1 - noise)
    kinds = seen.trace() ** 2 / max((seen**2).sum(), NOTHING)
    certainty = float(members.sum() >= neighbours.SMALLEST_CAMP)
    for value, limits in (
        (found.common, (neighbours.COMMON, neighbours.MOST)),
        (found.size, (neighbours.SMALL, neighbours.LARGE)),
        (apart, (neighbours.APART, neighbours.QUITE_APART)),
        (diversity, (neighbours.ALIKE, neighbours.DIVERSE)),
        (kinds, (neighbours.FEW_KINDS, neighbours.MANY_KINDS)),
        (seen.trace() / max(products.trace(), NOTHING), (neighbours.HIDDEN, neighbours.VISIBLE)),
    ):
        certainty *= rise(value, *limits)
    return 1 - certainty * members


class _Difference(NamedTuple):
    """See `core.neighbours.Difference`."""

    differences: Float[np.ndarray, " n"]
    clients: Float[np.ndarray, " n"]
    common: float
    size: float
    noise: float


def _common_difference(
    products: Float[np.ndarray, "n n"],
    hidden: Float[np.ndarray, " n"],
    voice: Float[np.ndarray, " n"],
) -> _Difference:
    contrast = _contrast(products - np.outer(hidden, hidden), voice)
    differences = contrast @ products @ contrast.T
    positions, strength = _principal_axis(differences)
    along = products @ (contrast.T @ positions)
    length = np.sqrt(max(positions @ contrast @ along, NOTHING))
    common, size = (strength / max(matrix.trace(), NOTHING) for matrix in (differences, products))
    judged = (np.diagonal(contrast) ** 2).sum()
    noise = (differences.trace() - strength) / max(judged, NOTHING)
    return _Difference(positions * np.sqrt(strength), along / length, common, size, noise)


def _contrast(
    seen: Float[np.ndarray, "n n"], voice: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    near = np.maximum(cosines(seen, NOTHING) - neighbours.NEAR, 0) * voice
    np.fill_diagonal(near, 0)
    total = near.sum(axis=1)
    share = total / (total + neighbours.FEW_NEIGHBOURS)
    return (diagonal(len(seen), 1.0) - near / np.maximum(total, TINY)[:, None]) * share[:, None]


def _members(
    found: _Difference, camp: Bool[np.ndarray, " n"], trusted: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    judged = found.differences != 0
    usual = trusted & ~camp & judged
    if not usual.any():
        return np.zeros(len(judged))
    away = found.differences - lower_median(found.differences[usual])
    deviation = max(neighbours.DEVIATION * lower_median(np.abs(away[usual])), TINY)
    mean = (away * camp).sum() / max(camp.sum(), 1)
    out = found.clients - lower_median(found.clients[trusted])
    away, out = away * np.sign(mean), out * np.sign(mean)
    by_deviation = rise(away / deviation, neighbours.USUAL, neighbours.UNUSUAL)
    shares = np.minimum(away, out) / max(abs(mean), TINY)
    return judged * by_deviation * rise(shares, neighbours.NEARER, neighbours.HALFWAY)


def _variance(products: Float[np.ndarray, "n n"], weights: Float[np.ndarray, " n"]) -> float:
    shares = weights / max(weights.sum(), TINY)
    spread = shares @ np.diagonal(products) - shares @ products @ shares
    return float(spread) / max(1 - float((shares**2).sum()), NOTHING)


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
