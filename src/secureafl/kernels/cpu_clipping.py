"""Trust clipping (`core.clipping`) on a CPU: compiled passes over vectors, NumPy for the rest.

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
from secureafl.core.panels import num_panels
from secureafl.core.server import LARGEST_NORM
from secureafl.kernels import reference
from secureafl.kernels.cpu_clipping_code import (
    PRODUCTS,
    SKETCHES,
    record_pass,
    sketch_pass,
    step_pass,
)
from secureafl.kernels.cpu_peers import lower_median, peer_weights
from secureafl.kernels.cpu_threads import ranges_of
from secureafl.kernels.llvm import address
from secureafl.linalg.rows import TINY

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.clipping import Records, Standing
    from secureafl.core.panels import Panels
    from secureafl.core.types import Arrival
    from secureafl.linalg.sketch import Sketch

FLAGS = torch.tensor(False), torch.tensor(True)  # to make one takes longer than to look one up
_TILE = 4096  # coordinates that a thread takes at a time


def remember_upload(
    records: Records, sketch: Sketch, centre: Tensor, arrival: Arrival, momentum: float
) -> Position:
    """See `kernels.operations.remember_upload`."""
    if _use_reference(centre):
        return reference.remember_upload(records, sketch, centre, arrival, momentum)
    i, size = int(arrival.client), records.last.shape[1]
    sketches, sums = _sketched(sketch, centre, arrival, size)
    norm, distance = math.sqrt(sums[0]), math.sqrt(sums[1])
    known, distances = records.known.numpy(), records.distances.numpy()
    known_before, known[i] = bool(known[i]), True
    records.norms.numpy()[i], distances[i] = norm, _measured(records, i, distance, momentum)
    radius = lower_median(records.recent.numpy()[known]) ** 2
    share = min(1.0, radius / distance) if distance > 0 else 1.0
    cosine = _put_into_rows(records, i, sketches, share, momentum)
    if known_before and cosine is not None:
        _update_curvature(records, i, cosine, momentum)
    found = torch.tensor([distance, sums[2], math.sqrt(sums[3])], dtype=torch.float64)
    return Position(*found.unbind())


def _measured(records: Records, i: int, distance: float, momentum: float) -> float:
    """What counts of a distance, which goes into the client's means: see `core.clipping`."""
    usual, recent = records.usual.numpy(), records.recent.numpy()
    uploads = float(records.uploads[i])
    counted = min(distance, clipping.GROWTH * float(usual[i])) if uploads > 0 else distance
    usual[i] += (counted - usual[i]) / (uploads + 1)
    root, before = math.sqrt(counted), min(uploads / (uploads + 1), momentum)
    recent[i] = root + before * (recent[i] - root)
    return counted


def _sketched(
    sketch: Sketch, centre: Tensor, arrival: Arrival, size: int
) -> tuple[Float[np.ndarray, "3 k"], list[float]]:
    """Sketches of the upload, of the centre and of the model; and the products of the first two."""
    ranges = ranges_of(-(-len(centre) // size), len(centre))
    sketches = np.zeros((ranges.blocks, SKETCHES, size), np.float32)
    sums = np.zeros((ranges.blocks, PRODUCTS))
    given = arrival.gradient.contiguous(), centre, arrival.base.contiguous(), *sketch
    places = [*(tensor.data_ptr() for tensor in given), address(sketches), address(sums)]
    run = sketch_pass()
    ranges.run(lambda *numbers: run(*places, size, *numbers))
    return sketches.sum(axis=0) if ranges.blocks > 1 else sketches[0], sums.sum(axis=0).tolist()


def _use_reference(centre: Tensor) -> bool:
    return centre.dtype != torch.float32


def _put_into_rows(
    records: Records, i: int, sketches: Float[np.ndarray, "3 k"], share: float, momentum: float
) -> float | None:
    """Renew the rows of a client; the cosine between the model's move and the upload's change."""
    uploads, kept = records.uploads.numpy(), records.kept.numpy()
    # A plain mean of the first uploads, so that the very first does not count for long.
    before = min(uploads[i] / (uploads[i] + 1), momentum)
    kept[i] = share + before * (kept[i] - share)
    uploads[i] += 1
    size, products = sketches.shape[1], np.zeros(PRODUCTS)
    rows = (records.last, records.base, records.history)
    places = [address(sketches) + 4 * size * k for k in range(SKETCHES)]
    places += [table.data_ptr() + 4 * size * i for table in rows]
    record_pass()(*places, address(products), share, before, size)
    moved, changed, both, norm = products.tolist()
    lengths = math.sqrt(moved) * math.sqrt(changed)
    told = lengths > 0 and math.sqrt(changed) > clipping.ROUNDING * math.sqrt(norm)
    return both / lengths if told else None


def _update_curvature(records: Records, i: int, cosine: float, momentum: float) -> None:
    """See `core.curvature.update_curvature`."""
    mean, variance, count = (kind.numpy() for kind in records.curvature)
    rate = max(1 / (count[i] + 1), 1 - momentum)
    deviation = cosine - mean[i]
    mean[i] += rate * deviation
    variance[i] = (1 - rate) * (variance[i] + rate * deviation**2)
    count[i] += 1


def call_panel(panels: Panels, every: int) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.call_panel`."""
    now = int(panels.arrivals)
    if num_panels(len(panels.order)) > 1 and now % every == 0:
        return reference.call_panel(panels, every)
    panels.arrivals.fill_(now + 1)
    return panels.order, FLAGS[now % every == 0]


def judge_clients(
    records: Records, trust: Tensor, members: Tensor, due: Tensor, momentum: float
) -> None:
    """See `kernels.operations.judge_clients`."""
    if not due:
        return
    known, who = records.known.numpy(), members.numpy()
    kept = records.kept.numpy()
    kept = kept / max(lower_median(kept[known]), TINY) - clipping.CUT
    weights = np.clip(kept / (clipping.SPARED - clipping.CUT), 0, 1)
    weights = _curvature_weights(records, known, momentum) * weights
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
    clients, known = len(records.known), int(np.count_nonzero(records.known.numpy()))
    trust, pace = float(standing.trust.numpy()[int(client)]), _spend_pace(standing, known, client)
    mean_trust = standing.mean_trust.numpy()
    mean_trust += clipping.RATE * pace * (trust - mean_trust)
    distances, norm = records.distances.numpy(), lower_median(records.norms.numpy())
    radius = min(lower_median(records.recent.numpy()) ** 2, norm)
    shorter = np.minimum(distances, radius).sum()
    stretch = np.minimum(distances, 2 * radius).sum() / max(shorter, TINY) if shorter > 0 else 1.0
    where = float(position.distance), float(position.along), float(position.centre)
    distance = where[0]
    length = min(distance, radius) / max(distance, TINY)
    factor = trust * pace / max(float(mean_trust), clipping.SHORTEST)
    moves = stretch * factor * _norm_after(where, length) <= LARGEST_NORM
    ready = bool(factor > 0 and 2 * known > clients and moves)
    towards = clipping.TOWARDS / clients * trust * pace * length if ready else 0.0
    moved = _norm_after(where, towards)
    shrink = 2 * norm / max(moved, TINY) if towards > 0 and moved > 2 * norm else 1.0
    numbers = [trust, pace, stretch * factor * (1 - length), stretch * factor * length]
    numbers += [shrink * (1 - towards), shrink * towards]
    found = torch.tensor(numbers, dtype=torch.float64)
    counts = FLAGS[trust * pace >= clipping.COUNTED]
    return StepWeights(found[0], found[1], counts, FLAGS[ready], found[2:4], found[4:])


def _norm_after(position: tuple[float, float, float], share: float) -> float:
    """See `core.clipping`."""
    distance, along, centre = position
    return math.sqrt(max(centre**2 + 2 * share * along + (share * distance) ** 2, 0.0))


def _spend_pace(standing: Standing, known: int, client: Tensor) -> float:
    """See `core.clipping`."""
    earned, i = standing.earned.numpy(), int(client)
    if len(earned) == 1:
        return float(earned[0])
    saved = float(earned[i])
    spent = min(saved, 1.0)
    np.minimum(earned + clipping.PACE / max(known - 1, 1), clipping.SAVED, out=earned)
    earned[i] = saved - spent
    return spent


def take_step(centre: Tensor, upload: Tensor, weights: StepWeights) -> Tensor:
    """See `kernels.operations.take_step`."""
    if _use_reference(centre):
        return reference.take_step(centre, upload, weights)
    direction, run = torch.empty_like(centre), step_pass()
    ranges = ranges_of(-(-len(centre) // _TILE), len(centre))
    given = centre, upload.contiguous(), direction  # held until the passes have run
    places = [tensor.data_ptr() for tensor in given]
    shares = weights.direction.tolist() + weights.centre.tolist()
    ranges.run(lambda size, _, *tiles: run(*places, *shares, size, _TILE, *tiles))
    return direction
