"""The hot operations compiled for this CPU (`kernels.cpu_code`), on all of torch's threads."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from secureafl.core.server import LARGEST_NORM
from secureafl.core.types import SecantProducts
from secureafl.kernels import reference
from secureafl.kernels.cpu_clipping import (
    FLAGS,
    call_panel,
    judge_clients,
    remember_upload,
    take_step,
)
from secureafl.kernels.cpu_code import (
    IN_REGISTERS,
    LANES,
    Rows,
    add_up_pass,
    order_pass,
    padded_pairs,
    secant_pass,
    store_pass,
    store_products_pass,
)
from secureafl.kernels.cpu_lbfgs import lbfgs_pass
from secureafl.kernels.cpu_peers import peer_weights
from secureafl.kernels.cpu_threads import Ranges, ranges_of
from secureafl.kernels.llvm import address
from secureafl.kernels.step import FilterResult, Step
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH
from secureafl.linalg.quantile import arrays, observe_array, quantile_array
from secureafl.linalg.sorting_network import middle_network, sorting_network

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.types import Arrival, Entry, Inner
    from secureafl.kernels.memory import Memory
    from secureafl.kernels.step import Selection
    from secureafl.linalg.quantile import History

# Of `kernels.cpu_clipping` and `kernels.cpu_peers`.
__all__ = [
    "call_panel",
    "judge_clients",
    "peer_weights",
    "remember_upload",
    "take_step",
]
# A pass over single rows, at which plain torch is fast.
secant_products = reference.secant_products

WORTH_IT = 1 << 20  # numbers in the memory; with fewer, plain torch is as fast, uncompiled
_LARGEST = float(np.finfo(np.float32).max)  # not infinity: the compiler is told there is none
_MOST_SLOTS, _MOST_PAIRS = 16, 7  # whose inner products are unrolled


def _use_reference(vectors: Tensor) -> bool:
    return vectors.numel() < WORTH_IT or vectors.dtype != torch.float32


def tiled_secant_products(memory: Memory, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.tiled_secant_products`."""
    if _use_reference(memory.vectors):
        return reference.tiled_secant_products(memory, arrival)
    tiles, clients, slots, _ = memory.vectors.shape
    run, ranges = secant_pass(clients, slots), ranges_of(tiles, arrival.gradient.numel())
    sums, client = _room(ranges, LANES), int(arrival.client)
    given = (arrival.gradient.contiguous(), arrival.base.contiguous(), sums)
    arrays = [array.data_ptr() for array in given]
    mine = memory.vectors.data_ptr() + 4 * client * slots * WIDTH
    ranges.run(lambda *numbers: run(mine, *arrays, *numbers))
    return SecantProducts(memory.known[client].clone(), *sums.sum(dim=0).unbind())


def filter_update(
    history: History, secant: SecantProducts, radius: float, level: float
) -> tuple[FilterResult, History]:
    """See `kernels.operations.filter_update`."""
    known, *numbers = (field.item() for field in secant)
    step, _, change, squared = numbers
    comparable = bool(known) and step > 0
    factor = math.sqrt(change / step) if comparable else 0.0
    past = arrays(history)
    if comparable:
        observe_array(*past, factor)
    threshold = quantile_array(*past, level)
    length = math.sqrt(squared)
    scale = radius / length if not known and length > radius else 1.0
    found = (factor if comparable else math.nan, threshold, scale)
    accepted = FLAGS[factor <= threshold]
    return FilterResult(accepted, *torch.tensor(found, dtype=torch.float64).unbind()), history


def place_pair(
    appended: Tensor,
    client: Tensor,
    secant: SecantProducts,
    keep: Tensor,
    pairs: int,
    min_curvature: float,
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.place_pair`."""
    bound = min_curvature * secant.ss.item()
    curved = bool(secant.known) and secant.sy.item() > bound
    counts, index = appended.numpy(), int(client)
    place = int(counts[index]) % pairs
    counts[index] += curved and bool(keep)
    return torch.tensor((place, place + pairs)), FLAGS[curved]


def select_participants(
    known: Tensor, shares: Tensor, client: Tensor, included: Tensor
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.select_participants`."""
    index, own, present = int(client), shares.numpy(), known.numpy().copy()
    own[index] = 0
    own[index, GRADIENT] = 1
    present[index] = bool(included)
    return torch.from_numpy(present), torch.tensor(int(np.count_nonzero(present)))


def after_step(
    memory: Memory, step: Step, learning_rate: float, count: Tensor
) -> tuple[Tensor, Memory]:
    """See `kernels.operations.after_step`."""
    with_model, squared = step.with_model.item(), step.squared.item()
    stepped = count.item() > 0 and squared <= LARGEST_NORM**2
    if stepped:
        memory.along.sub_(step.along, alpha=learning_rate)
        memory.squared.add_(learning_rate * (learning_rate * squared - 2 * with_model))
    return FLAGS[stepped], memory


def store_upload(
    memory: Memory, arrival: Arrival, entry: Entry, weights: Tensor, keep: Tensor
) -> Memory:
    """See `kernels.operations.store_upload`."""
    tiles, clients, slots, _ = memory.vectors.shape
    if _use_reference(memory.vectors) or slots > _MOST_SLOTS:
        return reference.store_upload(memory, arrival, entry, weights, keep)
    client, new = int(arrival.client), _new_rows(entry, keep)
    run, ranges = store_pass(clients, slots, new), ranges_of(tiles, weights.numel())
    sums, given = _room(ranges, padded_pairs(new, slots)), _contiguous(weights, arrival)
    arrays = [array.data_ptr() for array in (*given, sums)]
    mine = memory.vectors.data_ptr() + 4 * client * slots * WIDTH
    ranges.run(lambda *numbers: run(mine, *arrays, *numbers))
    _store_products(memory, client, new, sums)
    return memory


def _room(ranges: Ranges, columns: int) -> Tensor:
    """Zeros for the sums of every block."""
    return torch.zeros(ranges.blocks, columns, dtype=torch.float64)


def _contiguous(weights: Tensor, arrival: Arrival) -> tuple[Tensor, ...]:
    return weights.contiguous(), arrival.gradient.contiguous(), arrival.base.contiguous()


def _new_rows(entry: Entry, keep: Tensor) -> Rows:
    """The places of a client that get new rows, and what goes there."""
    if not keep:
        return ()
    own = zip(entry.places.tolist(), entry.parts, strict=True) if entry.keep else ()
    return (GRADIENT, "upload"), (BASE, "base"), *((OWN + place, part) for place, part in own)


def _store_products(memory: Memory, client: int, new: Rows, sums: Tensor) -> None:
    """Store a client's new inner products; without new rows only the model's with itself."""
    slots, squared = memory.gram.shape[1], memory.squared.data_ptr()
    gram = memory.gram.data_ptr() + 8 * client * slots * slots
    along = memory.along.data_ptr() + 8 * client * slots
    store_products_pass(new, slots)(sums.data_ptr(), gram, along, squared, len(sums))
    if new:
        memory.known.numpy()[client] = True


def order_step(
    memory: Memory,
    arrival: Arrival,
    entry: Entry,
    keep: Tensor,
    weights: Tensor,
    selection: Selection,
) -> tuple[Step, Memory]:
    """See `kernels.operations.order_step`."""
    tiles, clients, slots, _ = memory.vectors.shape
    if _use_reference(memory.vectors) or slots > _MOST_SLOTS:
        return reference.order_step(memory, arrival, entry, keep, weights, selection)
    client, new = int(arrival.client), _new_rows(entry, keep)
    order = _order(selection.present.numpy().tobytes(), int(selection.first), int(selection.last))
    run, ranges = (
        order_pass(clients, slots, order.in_registers, new),
        ranges_of(tiles, weights.numel()),
    )
    columns, size = clients * slots + LANES, weights.numel()
    direction = torch.empty(tiles * WIDTH, dtype=torch.float32)
    along, inner = _room(ranges, columns), _room(ranges, padded_pairs(new, slots))
    shares = selection.shares.numpy().astype(np.float32, order="C")
    vectors, given = memory.vectors.data_ptr(), _contiguous(weights, arrival)
    before = (vectors, address(shares), *(v.data_ptr() for v in given), direction.data_ptr())
    after = (along.data_ptr(), inner.data_ptr(), *order.arguments, client)

    def work(*numbers: int) -> None:
        scratch = torch.empty(order.rows * WIDTH + columns, dtype=torch.float32)
        run(*before, scratch.data_ptr(), *after, *numbers)

    ranges.run(work)
    _store_products(memory, client, new, inner)
    add_up_pass()(along.data_ptr(), columns, len(along))
    products, others = along[0, :-LANES].view(clients, slots), along[0, -LANES:]
    with_model, squared, apart, _ = others.unbind()
    return Step(direction[:size], products, with_model, squared, apart.sqrt()), memory


class _Order(NamedTuple):
    """The wanted order statistics as arguments of `order_pass`."""

    in_registers: bool
    rows: int
    arguments: tuple[int | float, ...]
    arrays: tuple[np.ndarray, ...]  # which some arguments are the addresses of


@functools.lru_cache(maxsize=1024)
def _order(present: bytes, first: int, last: int) -> _Order:
    """Arguments for the clients present (a byte each) and the order statistics to average.

    Rows without a client (absent ones, and one that makes the number even) hold as many lowest as
    highest values, so that the middle of the others stays in the middle.
    """
    there = np.frombuffer(present, dtype=bool)
    clients, rows = len(there), len(there) + len(there) % 2
    absent = np.flatnonzero(~there)
    lowest = len(absent) // 2
    absent = np.concatenate([absent, np.arange(clients, rows)])
    fill = np.full(len(absent), _LARGEST, np.float32)
    fill[:lowest] = -_LARGEST
    low, high = max(first, 0) + lowest, last + lowest
    middle, scale = (rows // 2 - 1, rows // 2), 1 / max(last - first + 1, 1)
    central = middle[0] <= low and high <= middle[1]
    in_registers = central and clients <= IN_REGISTERS
    network = middle_network(rows) if central else sorting_network(rows)
    if last - first + 1 == clients:
        network = network[:0]  # a mean needs no order
    weights = [scale if low <= k <= high else 0.0 for k in middle]
    weights = weights if in_registers else [scale, 0.0]
    tables = (address(absent), address(fill), len(absent), address(network), len(network))
    return _Order(in_registers, rows, (*tables, low, high, *weights), (absent, fill, network))


def lbfgs_shares(inner: Inner, appended: Tensor, pairs: int, max_correction: float) -> Tensor:
    """See `kernels.operations.lbfgs_shares`."""
    if pairs > _MOST_PAIRS:
        return reference.lbfgs_shares(inner, appended, pairs, max_correction)
    shares = torch.empty_like(inner.model)
    arrays = (inner.vectors, inner.model, appended, shares)
    numbers = (float(inner.squared), max_correction, len(shares))
    lbfgs_pass(pairs)(*(array.data_ptr() for array in arrays), *numbers)
    return shares
