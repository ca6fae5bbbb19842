"""The hot operations in plain torch, on any device: what the fast versions are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from secureafl.core.server import LARGEST_NORM
from secureafl.core.trust import (
    lower_median,
    similarity_weights,
    update_consistency,
    update_curvature,
    weigh_clients,
)
from secureafl.core.types import SecantProducts
from secureafl.core.uploads import with_upload
from secureafl.kernels.bfgs import lbfgs_shares as _lbfgs_shares
from secureafl.kernels.step import FilterResult, Selection, Step, moves_since, step_along
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, as_tiles, combine, read_client
from secureafl.linalg.order import order_mean
from secureafl.linalg.quantile import observe, quantile
from secureafl.linalg.rows import clip_factors
from secureafl.linalg.vectors import choose, exactly_scaled, row, set_row

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.trust import ClientStats
    from secureafl.core.types import Arrival, Entry, Inner
    from secureafl.core.uploads import Uploads
    from secureafl.kernels.memory import Memory
    from secureafl.linalg.quantile import History

__all__ = ["similarity_weights", "weigh_clients"]  # of `core.trust`


def tiled_secant_products(memory: Memory, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.tiled_secant_products`."""
    mine = read_client(memory.vectors[:, :, :OWN], arrival.client, arrival.gradient.numel())
    moves = moves_since(mine[GRADIENT], mine[BASE], arrival)
    return SecantProducts(row(memory.known, arrival.client), *moves)


def filter_update(
    history: History, secant: SecantProducts, radius: float, level: float
) -> tuple[FilterResult, History]:
    """See `kernels.operations.filter_update`."""
    comparable = secant.known & (secant.ss > 0)
    factor = torch.where(comparable, (secant.yy / secant.ss).sqrt(), 0)
    history = observe(history, factor, comparable)
    threshold = quantile(history, level)
    length = secant.squared.sqrt()
    scale = torch.where(~secant.known & (length > radius), radius / length, 1.0)
    # A factor that is not defined is 0, and passes.
    score = torch.where(comparable, factor, torch.nan)
    return FilterResult(factor <= threshold, score, threshold, scale), history


def place_pair(
    appended: Tensor,
    client: Tensor,
    secant: SecantProducts,
    keep: Tensor,
    pairs: int,
    min_curvature: float,
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.place_pair`."""
    # Never so for a step of zero, whatever the bound.
    curved = secant.known & (secant.sy > min_curvature * secant.ss)
    index = client.view(1)
    place = appended.index_select(0, index) % pairs
    appended.index_add_(0, index, (curved & keep).long().view(1))
    return torch.cat([place, place + pairs]), curved


def store_upload(
    memory: Memory, arrival: Arrival, entry: Entry, weights: Tensor, keep: Tensor
) -> Memory:
    """See `kernels.operations.store_upload`."""
    mine = read_client(memory.vectors, arrival.client, weights.numel())
    rows = torch.where(keep, _renewed(mine, arrival, entry), mine)
    index = arrival.client.view(1)
    memory.vectors.index_copy_(1, index, as_tiles(rows, len(memory.vectors))[:, None])
    inner = inner_products(rows, weights)
    set_row(memory.gram, arrival.client, inner[:-1, :-1], keep)
    set_row(memory.along, arrival.client, inner[:-1, -1], keep)
    known = keep | row(memory.known, arrival.client)
    memory.known.index_copy_(0, index, known.view(1))
    return memory._replace(squared=inner[-1, -1])


def _renewed(mine: Tensor, arrival: Arrival, entry: Entry) -> Tensor:
    """A client's rows after an upload that is kept."""
    parts = {
        "upload": arrival.gradient,
        "step": arrival.base - mine[BASE],
        "change": arrival.gradient - mine[GRADIENT],
    }
    rows = mine
    if entry.parts:
        new = torch.stack([parts[part] for part in entry.parts])
        rows = torch.where(entry.keep, mine.index_copy(0, OWN + entry.places, new), mine)
    return torch.cat([arrival.gradient[None], arrival.base[None], rows[OWN:]])


def inner_products(rows: Tensor, model: Tensor) -> Tensor:
    """Of all rows and, last, the model with each other, in float64; see `core.types.Inner`."""
    exact = torch.cat([rows, model[None]]).double()
    upload = torch.arange(len(exact), device=rows.device) == GRADIENT
    asked = ~(upload[:, None] ^ upload)
    return torch.where(asked, exact @ exact.T, 0)


def select_participants(
    known: Tensor, shares: Tensor, client: Tensor, heard: Tensor
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.select_participants`."""
    index = client.view(1)
    shares.index_fill_(0, index, 0)
    shares[:, GRADIENT].index_fill_(0, index, 1)
    present = known.index_copy(0, index, heard.view(1))
    return present, present.sum()


def after_step(
    memory: Memory, step: Step, learning_rate: float, count: Tensor
) -> tuple[Tensor, Memory]:
    """See `kernels.operations.after_step`."""
    stepped = (count > 0) & (step.squared <= LARGEST_NORM**2)
    along = torch.add(memory.along, step.along, alpha=-learning_rate)
    squared = torch.add(memory.squared, step.with_model, alpha=-2 * learning_rate)
    squared = torch.add(squared, step.squared, alpha=learning_rate**2)
    return stepped, memory._replace(
        along=choose(stepped, along, memory.along),
        squared=choose(stepped, squared, memory.squared),
    )


def order_step(
    memory: Memory,
    arrival: Arrival,
    entry: Entry,
    keep: Tensor,
    weights: Tensor,
    selection: Selection,
) -> tuple[Step, Memory]:
    """See `kernels.operations.order_step`."""
    memory = store_upload(memory, arrival, entry, weights, keep)
    values = combine(memory.vectors, selection.shares.to(weights.dtype), weights)
    direction = order_mean(values, selection.present, selection.first, selection.last)
    return step_along(memory.vectors, direction, weights, arrival.gradient), memory


def lbfgs_shares(inner: Inner, appended: Tensor, pairs: int, max_correction: float) -> Tensor:
    """See `kernels.operations.lbfgs_shares`."""
    arrays = inner.vectors, inner.model, inner.squared, appended
    if appended.device.type != "cpu":
        return _lbfgs_shares(torch, *arrays, pairs, max_correction)
    gram, along, squared, counts = (array.numpy() for array in arrays)
    with np.errstate(all="ignore"):  # what is not finite is dropped there
        made = _lbfgs_shares(np, gram, along, squared, counts, pairs, max_correction)
    return torch.from_numpy(made)


def secant_products(uploads: Uploads, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.secant_products`."""
    gradient, base, known = (row(kind, arrival.client) for kind in uploads)
    return SecantProducts(known, *moves_since(gradient, base, arrival))


def update_stats(
    stats: ClientStats,
    known: Tensor,
    client: Tensor,
    secant: SecantProducts,
    clip_norm: float,
    clip_to_median_norm: bool,
    memory: float,
) -> Tensor:
    """See `kernels.operations.update_stats`."""
    product = (secant.ss * secant.yy).sqrt()
    moved = secant.known & (product > 0) & (product < torch.inf)
    bend = secant.sy / torch.where(moved, product, 1)
    update_curvature(stats.curvature, client, bend, moved, memory)
    known.index_fill_(0, client.view(1), True)
    length = secant.squared.sqrt()
    most = torch.where(secant.known, length, length.clamp(max=clip_norm))
    set_row(stats.lengths, client, most, torch.ones_like(secant.known))
    if clip_to_median_norm:
        most = torch.minimum(most, lower_median(stats.lengths, known))
    scale = clip_factors(length, most)
    update_consistency(stats.consistency, client, secant.known, secant.squared * scale**2, memory)
    return scale


def update_momentum(
    sent: Uploads,
    recent_update: Tensor,
    update_history: Tensor,
    arrival: Arrival,
    heard: Tensor,
    scale: Tensor,
    short_momentum: float,
    long_momentum: float,
) -> Tensor:
    """See `kernels.operations.update_momentum`."""
    with_upload(sent, arrival)
    upload, index = exactly_scaled(arrival.gradient, scale), arrival.client.view(1)
    for kind, memory in ((recent_update, short_momentum), (update_history, long_momentum)):
        kept = memory * heard.to(upload.dtype)
        kind.index_copy_(0, index, torch.lerp(upload, row(kind, arrival.client), kept)[None])
    return row(update_history, arrival.client)
