"""Trust clipping (`core.clipping`) on a CPU: torch for passes over vectors, NumPy for the rest.

A step has many operations on few numbers, which torch takes about ten times as long to start.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from secureafl.core import clipping, curvature
from secureafl.core.clipping import Position, StepWeights
from secureafl.core.curvature import effective_samples
from secureafl.kernels.cpu_peers import lower_median, peer_weights
from secureafl.linalg.rows import TINY
from secureafl.linalg.sketch import sketched

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.clipping import Records, Standing
    from secureafl.core.types import Arrival
    from secureafl.linalg.sketch import Sketch

_SMALLEST = 1e-30  # share of an upload below which float32 could not hold the factor


def remember_upload(
    records: Records, sketch: Sketch, centre: Tensor, arrival: Arrival, momentum: float
) -> Position:
    """See `kernels.operations.remember_upload`."""
    i, size, away = int(arrival.client), records.last.shape[1], arrival.gradient - centre
    known, distances = records.known.numpy(), records.distances.numpy()
    known_before, known[i] = bool(known[i]), True
    records.norms.numpy()[i] = _norm(arrival.gradient)
    distances[i] = distance = _norm(away)
    share = min(1.0, lower_median(distances[known]) / distance) if distance > 0 else 1.0
    upload = sketched(sketch, combined(centre, 1 - share, arrival.gradient, share), size).numpy()
    base = sketched(sketch, arrival.base, size).numpy()
    if known_before:
        _compare(records, i, upload, base, momentum)
    _average(records, i, upload, base, share, momentum)
    # In float64, since an upload may be long, and not by BLAS, whose sums depend on its threads.
    along = float((away.double() * centre).sum())
    found = torch.tensor([distance, along, _norm(centre)], dtype=torch.float64)
    return Position(*found.unbind())


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def combined(one: Tensor, of_one: float, other: Tensor, of_other: float) -> Tensor:
    """The sum of two vectors, each times a number, in their dtype."""
    if 0 < abs(of_other) < _SMALLEST:
        return (one.double() * of_one + other.double() * of_other).to(one.dtype)
    return (one * of_one).add_(other, alpha=of_other)


def _compare(
    records: Records, i: int, upload: np.ndarray, base: np.ndarray, momentum: float
) -> None:
    """See `core.clipping`; the statistics are those of `core.curvature.update_curvature`."""
    moved = (base - records.base.numpy()[i]).astype(np.float64)
    changed = (upload - records.last.numpy()[i]).astype(np.float64)
    change, norm = (math.sqrt(v @ v) for v in (changed, upload.astype(np.float64)))
    lengths = math.sqrt(moved @ moved) * change
    if lengths > 0 and change > clipping.ROUNDING * norm:
        mean, variance, count = (kind.numpy() for kind in records.curvature)
        rate = max(1 / (count[i] + 1), 1 - momentum)
        deviation = moved @ changed / lengths - mean[i]
        mean[i] += rate * deviation
        variance[i] = (1 - rate) * (variance[i] + rate * deviation**2)
        count[i] += 1


def _average(
    records: Records, i: int, upload: np.ndarray, base: np.ndarray, share: float, momentum: float
) -> None:
    uploads, kept = records.uploads.numpy(), records.kept.numpy()
    before = min(uploads[i] / (uploads[i] + 1), momentum)
    history = records.history.numpy()[i]
    history += (upload - history) * history.dtype.type(1 - before)
    kept[i] = share + before * (kept[i] - share)
    records.last.numpy()[i], records.base.numpy()[i] = upload, base
    uploads[i] += 1


def judge_clients(
    records: Records, trust: Tensor, members: Tensor, due: Tensor, momentum: float
) -> None:
    """See `kernels.operations.judge_clients`."""
    if not due:
        return
    known, who = records.known.numpy(), members.numpy()
    kept = np.clip((records.kept.numpy() - clipping.CUT) / (clipping.SPARED - clipping.CUT), 0, 1)
    weights = _curvature_weights(records, known, momentum) * kept
    left = torch.from_numpy(known & (weights > 0))
    by_peers = peer_weights(records.history, members, left, due).numpy()
    judged = who[known[who]]
    found = (weights[who] * by_peers)[known[who]]
    values = trust.numpy()
    values[judged] += clipping.NEWS * (found - values[judged])


def _curvature_weights(
    records: Records, known: np.ndarray, momentum: float
) -> Float[np.ndarray, " n"]:
    """See `core.curvature.curvature_weights`."""
    mean, variance, count = (kind.numpy() for kind in records.curvature)
    samples = np.clip(count, 1, effective_samples(momentum))
    rated = (count >= curvature.MIN_OBSERVATIONS) & known
    error = clipping.CREDIT * np.sqrt(variance / samples)
    median, lowest = lower_median(mean[rated]), curvature.MIN_CURVATURE
    if not 0 < median < math.inf:
        return np.ones(len(mean))
    weights = (mean + error) / max(median, TINY) - lowest
    weights /= curvature.FULL_CURVATURE - lowest
    return np.where(rated, np.clip(weights, 0, 1), 1.0)


def weigh_step(
    records: Records, standing: Standing, client: Tensor, position: Position
) -> StepWeights:
    """See `kernels.operations.weigh_step`."""
    known, clients = records.known.numpy(), len(records.known)
    trust, pace = float(standing.trust.numpy()[int(client)]), _spend_pace(standing, known, client)
    mean_trust = standing.mean_trust.numpy()
    mean_trust += clipping.RATE * pace * (trust - mean_trust)
    distances, norm = np.where(known, records.distances.numpy(), 0.0), _median_norm(records, known)
    radius = min(lower_median(distances), norm)
    shorter = np.minimum(distances, radius).sum()
    stretch = np.minimum(distances, 2 * radius).sum() / max(shorter, TINY) if shorter > 0 else 1.0
    distance, along, centre = (float(number) for number in position)
    length = min(distance, radius) / max(distance, TINY)
    factor = trust * pace / max(float(mean_trust), clipping.SHORTEST)
    ready = factor > 0 and 2 * int(known.sum()) > clients
    towards = clipping.TOWARDS / clients * trust * pace * length if ready else 0.0
    moved = math.sqrt(max(centre**2 + 2 * towards * along + (towards * distance) ** 2, 0.0))
    shrink = 2 * norm / max(moved, TINY) if towards > 0 and moved > 2 * norm else 1.0
    numbers = [trust, pace, stretch * factor * (1 - length), stretch * factor * length]
    numbers += [shrink * (1 - towards), shrink * towards]
    found = torch.tensor(numbers, dtype=torch.float64)
    counts = torch.tensor(trust * pace >= clipping.COUNTED)
    return StepWeights(found[0], found[1], counts, torch.tensor(ready), found[2:4], found[4:])


def _spend_pace(standing: Standing, known: np.ndarray, client: Tensor) -> float:
    """See `core.clipping`."""
    earned, i = standing.earned.numpy(), int(client)
    if len(earned) == 1:
        return float(earned[0])
    saved = float(earned[i])
    spent = min(saved, 1.0)
    np.minimum(earned + clipping.PACE / max(int(known.sum()) - 1, 1), clipping.SAVED, out=earned)
    earned[i] = saved - spent
    return spent


def _median_norm(records: Records, known: np.ndarray) -> float:
    return lower_median(np.where(known, records.norms.numpy(), 0.0))


def take_step(centre: Tensor, upload: Tensor, weights: StepWeights) -> Tensor:
    """See `kernels.operations.take_step`."""
    direction = combined(centre, *_between(weights.direction, upload))
    centre.copy_(combined(centre, *_between(weights.centre, upload)))
    return direction


def _between(shares: Tensor, upload: Tensor) -> tuple[float, Tensor, float]:
    of_centre, of_upload = shares.tolist()
    return of_centre, upload, of_upload
