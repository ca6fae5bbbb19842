"""The hot operations in plain torch, on any device: the reference for the fast versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from secureafl.core import clipping
from secureafl.core.clipping import remember_upload, take_step
from secureafl.core.neighbours import trust_weights
from secureafl.core.panels import call_panel
from secureafl.core.server import LARGEST_NORM
from secureafl.core.types import SecantProducts
from secureafl.kernels.step import FilterResult, Selection, Step, secant_inner_products, step_along
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, as_tiles, combine, read_client
from secureafl.linalg.lbfgs import Products, bfgs_product, cap
from secureafl.linalg.order import order_mean
from secureafl.linalg.quantile import observe, quantile
from secureafl.linalg.vectors import choose, row, set_row

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.clipping import Records
    from secureafl.core.types import Arrival, Entry, Inner
    from secureafl.core.uploads import Uploads
    from secureafl.kernels.memory import Memory
    from secureafl.linalg.quantile import History

# Of `core.clipping` and `core.panels`.
__all__ = ["call_panel", "remember_upload", "take_step"]


def tiled_secant_products(memory: Memory, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.tiled_secant_products`."""
    mine = read_client(memory.vectors[:, :, :OWN], arrival.client, arrival.gradient.numel())
    inner = secant_inner_products(mine[GRADIENT], mine[BASE], arrival)
    return SecantProducts(row(memory.known, arrival.client), *inner)


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
    """The rows of a client after an upload that is kept."""
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
    """Inner products of all rows and, last, the model, in float64; see `core.types.Inner`."""
    exact = torch.cat([rows, model[None]]).double()
    upload = torch.arange(len(exact), device=rows.device) == GRADIENT
    asked = ~(upload[:, None] ^ upload)
    return torch.where(asked, exact @ exact.T, 0)


def select_participants(
    known: Tensor, shares: Tensor, client: Tensor, included: Tensor
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.select_participants`."""
    index = client.view(1)
    shares.index_fill_(0, index, 0)
    shares[:, GRADIENT].index_fill_(0, index, 1)
    present = known.index_copy(0, index, included.view(1))
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
        return shares_of_arrays(torch, *arrays, pairs, max_correction)
    gram, along, squared, counts = (array.numpy() for array in arrays)
    with np.errstate(all="ignore"):  # `bfgs_product` drops what is not finite
        made = shares_of_arrays(np, gram, along, squared, counts, pairs, max_correction)
    return torch.from_numpy(made)


def shares_of_arrays(
    xp: Any, gram: Any, along: Any, squared: Any, appended: Any, pairs: int, max_correction: float
) -> Any:
    """`lbfgs_shares` on the arrays of a library `xp`, NumPy or torch."""
    place = xp.arange(pairs, device=gram.device)
    ring = (appended[:, None] + place) % pairs  # oldest first; empty places before them
    order = OWN + xp.concatenate([ring, ring + pairs], axis=1)
    client = xp.arange(len(gram), device=gram.device)[:, None]
    inner = _ordered_products(xp, gram, along, squared, client, order)
    made = bfgs_product(xp, inner, appended)
    scale = cap(xp, made.length, max_correction * xp.sqrt(gram[:, GRADIENT, GRADIENT]))
    shares = xp.zeros(gram.shape[:2], dtype=gram.dtype, device=gram.device)
    shares[:, GRADIENT] = 1.0
    shares[:, BASE] = scale * made.of_vector
    of_pairs = xp.stack([scale * factor for factor in made.of_steps + made.of_changes], 1)
    shares[client, order] = of_pairs
    return shares


def _ordered_products(
    xp: Any, gram: Any, along: Any, squared: Any, client: Any, order: Any
) -> Products:
    """Inner products of the pairs, oldest first, and of them with v = w - base."""
    size = order.shape[1] // 2
    ordered = gram[client[:, :, None], order[:, :, None], order[:, None, :]]
    table = xp.moveaxis(ordered, 0, 2)
    with_v = (along - gram[:, BASE])[client, order].T
    drift = squared - 2 * along[:, BASE] + gram[:, BASE, BASE]

    def block(down: int, right: int) -> list[list[Any]]:
        return [[table[down + i, right + k] for k in range(size)] for i in range(size)]

    return Products(
        steps=block(0, 0),
        cross=block(0, size),
        changes=block(size, size),
        along_steps=list(with_v[:size]),
        along_changes=list(with_v[size:]),
        squared=xp.where(drift > 0, drift, 0.0),
    )


def secant_products(uploads: Uploads, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.secant_products`."""
    gradient, base, known = (row(kind, arrival.client) for kind in uploads)
    return SecantProducts(known, *secant_inner_products(gradient, base, arrival))


def peer_weights(
    history: Tensor, members: Tensor, known: Tensor, due: Tensor, trust: Tensor | None = None
) -> Tensor:
    """Weights of the members from their update histories; 0 for the unknown.

    They are those of `core.peers`, times those of `core.neighbours` if the `trust` in all clients
    is given. Where they are not `due`, what is returned means nothing: a GPU then skips the work.
    """
    rows = history.index_select(0, members).double()  # squares of large float32 overflow
    so_far = None if trust is None else trust.index_select(0, members)
    return trust_weights(rows @ rows.T, known.index_select(0, members), so_far)


def judge_clients(
    records: Records,
    trust: Tensor,
    members: Tensor,
    due: Tensor,
    momentum: float,
    neighbours: bool = False,
) -> None:
    """See `kernels.operations.judge_clients`."""
    given = records, trust, members, due, momentum, neighbours
    clipping.judge_clients(*given, peer_weights)
