"""Trust clipping (`core.clipping`) on a CPU: compiled passes over vectors, NumPy for the rest.

A step has many operations on few numbers, which torch takes about ten times as long to start.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from secureafl.core import clipping, curvature
from secureafl.core.clipping import Shares, Weights
from secureafl.core.curvature import effective_samples
from secureafl.core.panels import LARGEST_PANEL, num_panels
from secureafl.core.server import LARGEST_NORM
from secureafl.kernels import reference
from secureafl.kernels.cpu_arrays import lower_median, rise
from secureafl.kernels.cpu_clipping_code import (
    COMPARED,
    PRODUCTS,
    SKETCHES,
    record_pass,
    sketch_pass,
    step_pass,
)
from secureafl.kernels.cpu_peers import peer_weights
from secureafl.kernels.cpu_threads import ranges_of
from secureafl.kernels.llvm import doubles
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


class _Columns(NamedTuple):
    """What records hold as a number for each client, in NumPy: the same memory."""

    known: np.ndarray
    norms: np.ndarray
    distances: np.ndarray
    usual: np.ndarray
    recent: np.ndarray
    uploads: np.ndarray
    kept: np.ndarray
    curvature: tuple[np.ndarray, ...]  # mean, variance and count
    whole: tuple[np.ndarray, ...]  # likewise


def _columns(records: Records) -> _Columns:
    numbers = records[: len(_Columns._fields) - 2]
    curvature, whole = (_in_numpy(*kind) for kind in (records.curvature, records.whole))
    return _Columns(*_in_numpy(*numbers), curvature=curvature, whole=whole)


@functools.lru_cache(maxsize=64)
def _in_numpy(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The tensors as arrays: all are looked up sooner than one is made."""
    return tuple(tensor.numpy() for tensor in tensors)


def remember_upload(
    records: Records, sketch: Sketch, centre: Tensor, arrival: Arrival, momentum: float
) -> Float[Tensor, " 3"]:
    """See `kernels.operations.remember_upload`."""
    if _use_reference(centre):
        return reference.remember_upload(records, sketch, centre, arrival, momentum)
    i, columns = int(arrival.client), _columns(records)
    sketches, sums = _sketched(sketch, centre, arrival, records.last.shape[1])
    norm, distance = math.sqrt(sums[0]), math.sqrt(sums[1])
    known_before, columns.known[i] = columns.known.item(i), True
    columns.norms[i] = norm
    columns.distances[i] = _measured(columns, i, distance, momentum)
    radius = lower_median(columns.recent[columns.known]) ** 2
    share = min(1.0, radius / distance) if distance > 0 else 1.0
    cosines = _put_into_rows(records, columns, i, sketches, share, momentum)
    for statistics, cosine in zip((columns.curvature, columns.whole), cosines, strict=True):
        if known_before and cosine is not None:
            _update_curvature(statistics, i, cosine, momentum)
    return _tensor([distance, sums[2], math.sqrt(sums[3])])


def _tensor(numbers: Sequence[float]) -> Tensor:
    """As `torch.tensor`, in float64, which takes several times as long."""
    return torch.frombuffer(array("d", numbers), dtype=torch.float64)


def _scalar(number: float) -> Tensor:
    return torch.scalar_tensor(number, dtype=torch.float64)


def _measured(columns: _Columns, i: int, distance: float, momentum: float) -> float:
    """What counts of a distance, which goes into the client's means: see `core.clipping`."""
    uploads, usual, recent = columns.uploads.item(i), columns.usual.item(i), columns.recent.item(i)
    counted = min(distance, clipping.GROWTH * usual) if uploads > 0 else distance
    columns.usual[i] = usual + (counted - usual) / (uploads + 1)
    root, before = math.sqrt(counted), min(uploads / (uploads + 1), momentum)
    columns.recent[i] = root + before * (recent - root)
    return counted


def _sketched(
    sketch: Sketch, centre: Tensor, arrival: Arrival, size: int
) -> tuple[Float[Tensor, "3 k"], list[float]]:
    """Sketches of the upload, of the centre and of the model; and the products of the first two."""
    ranges = ranges_of(-(-centre.numel() // size), centre.numel())
    sketches = torch.empty(ranges.blocks * SKETCHES, size, dtype=torch.float32)
    sums, run = doubles(ranges.blocks * PRODUCTS), sketch_pass()
    given = arrival.gradient.contiguous(), centre, arrival.base.contiguous(), *sketch, sketches
    places = [tensor.data_ptr() for tensor in given]
    ranges.run(lambda *numbers: run(*places, sums, size, *numbers))
    if ranges.blocks == 1:
        return sketches, [*sums]
    totals = np.frombuffer(sums).reshape(-1, PRODUCTS).sum(axis=0)
    added = sketches.numpy().reshape(-1, SKETCHES, size).sum(axis=0)
    return torch.from_numpy(added), totals.tolist()


def _use_reference(centre: Tensor) -> bool:
    return centre.dtype != torch.float32


def _put_into_rows(
    records: Records,
    columns: _Columns,
    i: int,
    sketches: Float[Tensor, "3 k"],
    share: float,
    momentum: float,
) -> tuple[float | None, float | None]:
    """Renew the rows of a client; the cosines between the model's move and the upload's change."""
    uploads, kept = columns.uploads.item(i), columns.kept.item(i)
    # A plain mean of the first uploads, so that the very first does not count for long.
    before = min(uploads / (uploads + 1), momentum)
    columns.kept[i] = share + before * (kept - share)
    columns.uploads[i] = uploads + 1
    size, products = records.last.shape[1], doubles(COMPARED)
    rows, start = (records.last, records.base, records.history), sketches.data_ptr()
    places = [start + 4 * size * k for k in range(SKETCHES)]
    places += [table.data_ptr() + 4 * size * i for table in rows]
    record_pass()(*places, products, share, before, size)
    return _cosines(*products)


def _cosines(
    moved: float, changed: float, both: float, norm: float, last: float, on_last: float, rest: float
) -> tuple[float | None, float | None]:
    """See `core.clipping._compare`; None where one says nothing."""
    if math.sqrt(changed) <= clipping.ROUNDING * math.sqrt(norm):
        return None, None
    along = on_last / max(last, TINY)
    by_others = max(moved - along * on_last, 0.0)  # the square of what others moved
    if math.sqrt(by_others) <= clipping.ALONE * math.sqrt(moved):
        return None, _cosine(both, moved, changed)
    return _cosine(both - along * rest, by_others, changed), _cosine(both, moved, changed)


def _cosine(product: float, one: float, other: float) -> float | None:
    lengths = math.sqrt(one) * math.sqrt(other)
    return product / lengths if lengths > 0 else None


def _update_curvature(
    statistics: tuple[np.ndarray, ...], i: int, cosine: float, momentum: float
) -> None:
    """See `core.curvature.update_curvature`."""
    means, variances, counts = statistics
    mean, count = means.item(i), counts.item(i)
    rate, deviation = max(1 / (count + 1), 1 - momentum), cosine - mean
    means[i] = mean + rate * deviation
    variances[i] = (1 - rate) * (variances.item(i) + rate * deviation**2)
    counts[i] = count + 1


def call_panel(panels: Panels, every: int) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.call_panel`."""
    (arrivals,) = _in_numpy(panels.arrivals)
    now = arrivals.item()
    if num_panels(panels.order.numel()) > 1 and now % every == 0:
        return reference.call_panel(panels, every)
    arrivals[()] = now + 1
    return panels.order, FLAGS[now % every == 0]


def judge_clients(
    records: Records,
    trust: Tensor,
    members: Tensor,
    due: Tensor,
    momentum: float,
    neighbours: bool = False,
) -> None:
    """See `kernels.operations.judge_clients`."""
    if not due:
        return
    columns, who = _columns(records), members.numpy()
    known = columns.known
    kept = columns.kept / max(lower_median(columns.kept[known]), TINY)
    kinds = (columns.curvature, columns.whole)
    curved = np.minimum(*(_curvature_weights(kind, known, momentum) for kind in kinds))
    weights = curved * rise(kept, clipping.CUT, clipping.SPARED)
    left = torch.from_numpy(known & (weights > 0))
    so_far = trust if neighbours else None
    by_peers = peer_weights(records.history, members, left, due, so_far).numpy()
    judged = who[known[who]]
    found = (weights[who] * by_peers)[known[who]]
    values = trust.numpy()
    before = values[judged]
    forgiven = (found > before) & (before < clipping.COUNTED)
    forgiving = clipping.FORGIVING if neighbours else clipping.NEWS
    values[judged] += np.where(forgiven, forgiving, clipping.NEWS) * (found - before)


def _curvature_weights(
    statistics: tuple[np.ndarray, ...], known: np.ndarray, momentum: float
) -> Float[np.ndarray, " n"]:
    """See `core.curvature.curvature_weights`."""
    mean, variance, count = statistics
    samples = np.minimum(np.maximum(count, 1), effective_samples(momentum))
    rated = (count >= curvature.MIN_OBSERVATIONS) & known
    error = clipping.CREDIT * np.sqrt(variance / samples)
    median = lower_median(mean[rated])
    if not 0 < median < math.inf:
        return np.ones(len(mean))
    weights = (mean + error) / max(median, TINY)
    weights = rise(weights, curvature.MIN_CURVATURE, curvature.FULL_CURVATURE)
    return np.where(rated, weights, 1.0)


def take_step(
    records: Records, standing: Standing, centre: Tensor, arrival: Arrival, position: Tensor
) -> tuple[Weights, Tensor]:
    """See `kernels.operations.take_step`."""
    weights, shares = _weigh_step(records, standing, arrival.client, position)
    return weights, _move_centre(centre, arrival.gradient, shares)


def _weigh_step(
    records: Records, standing: Standing, client: Tensor, position: Tensor
) -> tuple[Weights, tuple[float, ...]]:
    """See `core.clipping`."""
    i, columns = int(client), _columns(records)
    clients, known = len(columns.known), int(np.count_nonzero(columns.known))
    trusts, earned, mean = _in_numpy(*standing)
    trust, pace, mean_trust = trusts.item(i), _spend_pace(earned, known, i), mean.item()
    mean_trust += clipping.RATE * pace * (trust - mean_trust)
    mean[()] = mean_trust
    norm = lower_median(columns.norms)
    radius = min(lower_median(columns.recent) ** 2, norm)
    stretch = _stretch(columns.distances, radius)
    where = distance, *_ = position.tolist()
    length = min(distance, radius) / max(distance, TINY)
    factor = _warm_up(columns.uploads) * trust * pace / max(mean_trust, clipping.SHORTEST)
    moves = stretch * factor * _norm_after(where, length) <= LARGEST_NORM
    ready = factor > 0 and 2 * known > clients and moves
    towards = clipping.TOWARDS / clients * trust * pace * length if ready else 0.0
    moved = _norm_after(where, towards)
    shrink = 2 * norm / max(moved, TINY) if towards > 0 and moved > 2 * norm else 1.0
    direction = stretch * factor * (1 - length), stretch * factor * length
    centre = shrink * (1 - towards), shrink * towards
    flags = FLAGS[trust * pace >= clipping.COUNTED], FLAGS[ready]
    return Weights(_scalar(trust), _scalar(pace), *flags), (*direction, *centre)


def _warm_up(uploads: Float[np.ndarray, " n"]) -> float:
    """See `core.clipping`."""
    panels = max(1.0, len(uploads) / LARGEST_PANEL)
    return min(lower_median(uploads) * panels / clipping.WARM_UP, 1.0)


def _stretch(distances: Float[np.ndarray, " n"], radius: float) -> float:
    """See `core.clipping`."""
    shorter, longer = (float(np.add.reduce(np.minimum(distances, k * radius))) for k in (1, 2))
    return longer / max(shorter, TINY) if shorter > 0 else 1.0


def _norm_after(position: list[float], share: float) -> float:
    """See `core.clipping`."""
    distance, along, centre = position
    return math.sqrt(max(centre**2 + 2 * share * along + (share * distance) ** 2, 0.0))


def _spend_pace(earned: Float[np.ndarray, " n"], known: int, i: int) -> float:
    """See `core.clipping`."""
    saved = earned.item(i)
    if len(earned) == 1:
        return saved
    spent = min(saved, 1.0)
    earned += clipping.PACE / max(known - 1, 1)
    np.minimum(earned, clipping.SAVED, out=earned)
    earned[i] = saved - spent
    return spent


def _move_centre(centre: Tensor, upload: Tensor, shares: tuple[float, ...]) -> Tensor:
    """See `core.clipping`."""
    if _use_reference(centre):
        given = Shares(_tensor(shares[:2]), _tensor(shares[2:]))
        return clipping.move_centre(centre, upload, given)
    direction, run = torch.empty_like(centre), step_pass()
    ranges = ranges_of(-(-centre.numel() // _TILE), centre.numel())
    given = centre, upload.contiguous(), direction  # held until the passes have run
    places = [tensor.data_ptr() for tensor in given]
    ranges.run(lambda size, _, *tiles: run(*places, *shares, size, _TILE, *tiles))
    return direction
