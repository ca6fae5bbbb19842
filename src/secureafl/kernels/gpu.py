"""The hot operations on a GPU (`gpu_code.cu`, `gpu_lbfgs.cu`, `gpu_secant.cu`)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from secureafl.core.server import LARGEST_NORM
from secureafl.core.types import SecantProducts
from secureafl.kernels import reference
from secureafl.kernels.gpu_clipping import (
    call_panel,
    judge_clients,
    remember_upload,
    take_step,
)
from secureafl.kernels.gpu_peers import peer_weights
from secureafl.kernels.gpu_source import (
    DECLARED,
    IN_REGISTERS,
    ONE_CLIENT,
    blocks_for,
    compiled,
    counter_for,
    give_room,
    network_line,
    processors,
)
from secureafl.kernels.step import FilterResult, Step
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH
from secureafl.linalg.quantile import LONGEST

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.types import Arrival, Entry, Inner
    from secureafl.core.uploads import Uploads
    from secureafl.kernels.memory import Memory
    from secureafl.kernels.step import Selection
    from secureafl.linalg.quantile import History

# Of `kernels.gpu_clipping` and `kernels.gpu_peers`.
__all__ = [
    "call_panel",
    "judge_clients",
    "peer_weights",
    "remember_upload",
    "take_step",
]

_MOST_SLOTS, _MOST_PAIRS = 16, 7  # which are unrolled
_PARTS = {"upload": 0, "step": 1, "change": 2}
_PLACES = {"GRADIENT": GRADIENT, "BASE": BASE, "OWN": OWN}


def tiled_secant_products(memory: Memory, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.tiled_secant_products`."""
    vectors = memory.vectors
    if vectors.dtype != torch.float32:
        return reference.tiled_secant_products(memory, arrival)
    kernel, size = _kernel("tiled_secant_products", *vectors.shape[1:3]), arrival.gradient.numel()
    blocks = blocks_for(size, vectors.device)
    found = torch.empty(4, dtype=torch.float64, device=vectors.device)
    sums = found.new_empty(4, blocks)
    given = [arrival.gradient.contiguous(), arrival.base.contiguous()]
    known, counter = torch.empty_like(memory.known[0]), counter_for(vectors.device)
    arguments = [vectors, memory.known, arrival.client, *given, sums, known, found, counter, size]
    kernel((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    return SecantProducts(known, *found.unbind())


def secant_products(uploads: Uploads, arrival: Arrival) -> SecantProducts:
    """See `kernels.operations.secant_products`."""
    device = arrival.gradient.device
    if arrival.gradient.dtype != torch.float32:
        return reference.secant_products(uploads, arrival)
    size, known = arrival.gradient.numel(), torch.empty_like(uploads.known[0])
    blocks = blocks_for(size, device)
    found = torch.empty(4, dtype=torch.float64, device=device)
    given = [arrival.client, arrival.gradient.contiguous(), arrival.base.contiguous()]
    given += [found.new_empty(4, blocks), known, found, counter_for(device), size]
    kernel = compiled("gpu_secant.cu", "secant_products", ())
    kernel((blocks, 1, 1), (ONE_CLIENT, 1, 1), [*uploads, *given])
    return SecantProducts(known, *found.unbind())


def filter_update(
    history: History, secant: SecantProducts, radius: float, level: float
) -> tuple[FilterResult, History]:
    """See `kernels.operations.filter_update`."""
    if len(history.recent) > LONGEST:
        return reference.filter_update(history, secant, radius, level)
    accepted = torch.empty_like(secant.known)
    found = torch.empty(3, dtype=torch.float64, device=accepted.device)
    numbers = [secant.known, secant.ss, secant.yy, secant.squared, accepted, found]
    settings = [float(radius), float(level), len(history.recent)]
    _kernel("filter_update")((1, 1, 1), (1024, 1, 1), [*history, *numbers, *settings])
    return FilterResult(accepted, *found.unbind()), history


def place_pair(
    appended: Tensor,
    client: Tensor,
    secant: SecantProducts,
    keep: Tensor,
    pairs: int,
    min_curvature: float,
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.place_pair`."""
    places, curved = appended.new_empty(2), torch.empty_like(keep)
    numbers = [secant.known, secant.ss, secant.sy, keep, places, curved]
    arguments = [appended, client, *numbers, float(min_curvature), pairs]
    _kernel("place_pair")((1, 1, 1), (1, 1, 1), arguments)
    return places, curved


def select_participants(
    known: Tensor, shares: Tensor, client: Tensor, included: Tensor
) -> tuple[Tensor, Tensor]:
    """See `kernels.operations.select_participants`."""
    if shares.dtype != torch.float64 or not shares.is_contiguous():  # a user's own estimator
        return reference.select_participants(known, shares, client, included)
    present, count = torch.empty_like(known), torch.empty_like(client)
    kernel = _kernel("select_participants", *shares.shape)
    kernel((1, 1, 1), (ONE_CLIENT, 1, 1), [known, shares, client, included, present, count])
    return present, count


def after_step(
    memory: Memory, step: Step, learning_rate: float, count: Tensor
) -> tuple[Tensor, Memory]:
    """See `kernels.operations.after_step`."""
    stepped = torch.empty_like(memory.known[0])
    rows = memory.along.numel() + 1
    arguments = [memory.along, memory.squared, step.along.contiguous(), step.with_model]
    arguments += [step.squared, count, stepped, float(learning_rate), LARGEST_NORM**2]
    kernel = _kernel("after_step", *memory.along.shape)
    kernel((-(-rows // ONE_CLIENT), 1, 1), (ONE_CLIENT, 1, 1), arguments)
    return stepped, memory


def store_upload(
    memory: Memory, arrival: Arrival, entry: Entry, weights: Tensor, keep: Tensor
) -> Memory:
    """See `kernels.operations.store_upload`."""
    _, clients, slots, _ = memory.vectors.shape
    if memory.vectors.dtype != torch.float32 or slots > _MOST_SLOTS:
        return reference.store_upload(memory, arrival, entry, weights, keep)
    size = weights.numel()
    blocks = blocks_for(size, weights.device)
    sums = memory.gram.new_empty(1 + slots * (slots + 1) // 2, blocks)
    given = [arrival.gradient.contiguous(), arrival.base.contiguous(), weights.contiguous()]
    parts = sum(_PARTS[part] << (2 * k) for k, part in enumerate(entry.parts))
    tables = [memory.gram, memory.along, memory.known, memory.squared]
    tables.append(counter_for(weights.device))
    _kernel("store_upload", clients, slots)(
        (blocks, 1, 1),
        (ONE_CLIENT, 1, 1),
        [
            *(memory.vectors, arrival.client, *given, entry.places, keep, entry.keep, sums),
            *(*tables, len(entry.parts), parts, size),
        ],
    )
    return memory


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
    threads, resident = _threads(clients)
    shared = _shared_bytes(clients, slots)
    unfit = shared > _most_shared(weights.device) or slots > _MOST_SLOTS
    if memory.vectors.dtype != torch.float32 or unfit:
        return reference.order_step(memory, arrival, entry, keep, weights, selection)
    memory = store_upload(memory, arrival, entry, weights, keep)
    kernel = _kernel("order_pass", clients, slots)
    give_room(kernel, shared)
    blocks = min(tiles, processors(weights.device) * resident)
    sums = memory.gram.new_empty(blocks, clients * slots + 3)
    direction = torch.empty_like(weights)
    chosen = [selection.shares.contiguous(), weights.contiguous(), arrival.gradient.contiguous()]
    order = [
        selection.present,
        selection.first,
        selection.last,
        direction,
        sums,
        weights.numel(),
        tiles,
    ]
    arguments = [memory.vectors, *chosen, *order]
    kernel((blocks, 1, 1), (threads, 1, 1), arguments, shared_mem=shared)
    found = torch.empty_like(sums[0])
    grid = (-(-len(found) // 32), 1, 1)
    _kernel("add_up", clients, slots)(grid, (ONE_CLIENT, 1, 1), [sums, found, blocks])
    products, others = found[:-3].view(clients, slots), found[-3:]
    with_model, squared, apart = others.unbind()
    return Step(direction, products, with_model, squared, apart.sqrt()), memory


def lbfgs_shares(inner: Inner, appended: Tensor, pairs: int, max_correction: float) -> Tensor:
    """See `kernels.operations.lbfgs_shares`."""
    if pairs > _MOST_PAIRS:
        return reference.lbfgs_shares(inner, appended, pairs, max_correction)
    shares = torch.empty_like(inner.model)
    clients, slots = shares.shape
    arguments = [inner.vectors, inner.model, inner.squared, appended, shares, float(max_correction)]
    grid = (-(-clients // 32), 1, 1)
    numbers = {"CLIENTS": clients, "SLOTS": slots, "PAIRS": pairs, **_PLACES}
    kernel = compiled("gpu_lbfgs.cu", "lbfgs_shares", tuple(numbers.items()))
    kernel(grid, (32, 1, 1), arguments)
    return shares


def _kernel(name: str, clients: int = 1, slots: int = 2) -> Any:
    """A kernel of `gpu_code.cu`, compiled for these numbers."""
    return _kernel_on(torch.cuda.current_device(), name, clients, slots)


@functools.cache
def _kernel_on(device: int, name: str, clients: int, slots: int) -> Any:
    threads, resident = _threads(clients)
    numbers = {"CLIENTS": clients, "SLOTS": slots, "THREADS": threads, "WIDTH": WIDTH}
    numbers |= {"RESIDENT": resident, "LONGEST": LONGEST, **_PLACES}
    lines = []
    if clients <= IN_REGISTERS:
        lines.append(network_line((clients + 1) // 2))
    return compiled("gpu_code.cu", name, tuple(numbers.items()), *lines)


def _threads(clients: int) -> tuple[int, int]:
    """Threads per block of `order_pass`, and blocks per multiprocessor at a time."""
    if clients <= IN_REGISTERS:
        return 128, 7
    return (512, 2) if clients <= 400 else (1024, 1)


def _shared_bytes(clients: int, slots: int) -> int:
    """Bytes of shared memory of a block of `order_pass`."""
    padded = clients + clients % 2
    return 12 * clients * slots + 4 * (WIDTH * (padded | 1) + WIDTH + padded) + clients


@functools.cache
def _most_shared(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin - DECLARED  # pyrefly: ignore
