"""Trust weights on a GPU (`gpu_trust.cu`): a few launches instead of two hundred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.core import trust
from secureafl.core.trust import TrustWeights, effective_samples
from secureafl.core.types import SecantProducts
from secureafl.kernels import reference
from secureafl.kernels.gpu_source import ONE_CLIENT, blocks_for, compiled, counter_for

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.trust import ClientStats, TrustConfig
    from secureafl.core.types import Arrival
    from secureafl.core.uploads import Uploads

_MOST_CLIENTS = 512  # for one block; plain torch, which uses the whole GPU, is faster beyond
_BLOCK = 1024


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
    _kernel("secant_products")((blocks, 1, 1), (ONE_CLIENT, 1, 1), [*uploads, *given])
    return SecantProducts(known, *found.unbind())


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
    scale = stats.norms.new_empty(())
    numbers = [stats.norms, *stats.consistency, *stats.curvature, known, client, *secant, scale]
    settings = [float(clip_norm), int(clip_to_median_norm), float(memory), len(known)]
    _kernel("update_stats")((1, 1, 1), (ONE_CLIENT, 1, 1), [*numbers, *settings])
    return scale


def update_momentum(
    sent: Uploads,
    recent_update: Tensor,
    update_history: Tensor,
    arrival: Arrival,
    known_before: Tensor,
    scale: Tensor,
    short_momentum: float,
    long_momentum: float,
) -> Tensor:
    """See `kernels.operations.update_momentum`."""
    rows = sent, recent_update, update_history
    memories = float(short_momentum), float(long_momentum)
    if recent_update.dtype != torch.float32:
        return reference.update_momentum(*rows, arrival, known_before, scale, *memories)
    mine = torch.empty_like(recent_update[0])
    given = [arrival.client, arrival.gradient.contiguous(), arrival.base.contiguous()]
    arguments = [sent.gradient, sent.base, recent_update, update_history, *given]
    arguments += [known_before, scale, mine, *memories, len(mine)]
    blocks = blocks_for(len(mine), recent_update.device)
    _kernel("update_momentum")((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)
    return mine


def similarity_weights(
    gram: Tensor, known: Tensor, similarity_penalty: float, disagreement_penalty: float
) -> Tensor:
    """See `kernels.operations.similarity_weights`."""
    if len(gram) > _MOST_CLIENTS:
        return reference.similarity_weights(gram, known, similarity_penalty, disagreement_penalty)
    clients, weights = len(gram), torch.empty_like(gram[0])
    penalties = float(similarity_penalty), float(disagreement_penalty)
    arguments = [gram, known, weights, *penalties, clients]
    threads = min(_BLOCK, 32 * clients)
    _kernel("similarity_weights")((1, 1, 1), (threads, 1, 1), arguments, shared_mem=6 * 8 * clients)
    return weights


def weigh_clients(
    stats: ClientStats, known: Tensor, client: Tensor, products: Tensor, config: TrustConfig
) -> TrustWeights:
    """See `kernels.operations.weigh_clients`."""
    clients = len(known)
    if clients > _MOST_CLIENTS or products.dtype != torch.float32:
        return reference.weigh_clients(stats, known, client, products, config)
    found, shares = stats.freshness.new_empty(2), torch.empty_like(products)
    arguments = [stats.gram, stats.freshness, *stats.consistency, *stats.curvature]
    arguments += [known, client, products, found, shares, float(config.arrival_decay)]
    arguments += [float(config.similarity_penalty), float(config.disagreement_penalty)]
    arguments += [int(config.consistency), int(config.curvature)]
    arguments += [effective_samples(config.memory), clients]
    threads, room = (min(_BLOCK, 32 * clients), 1, 1), 7 * 8 * clients + clients
    _kernel("weigh_clients")((1, 1, 1), threads, arguments, shared_mem=room)
    return TrustWeights(found[0], found[1], shares)


_CONSTANTS = (
    *("TINY", "CENTRE_ITERATIONS", "MIN_SQUARED_DISTANCE", "NOISE_ALLOWANCE"),
    *("MIN_CONSISTENCY", "FULL_CONSISTENCY", "MIN_CURVATURE", "FULL_CURVATURE"),
    *("MIN_OBSERVATIONS", "FULL_STEP_CLIENTS"),
)


def _kernel(name: str) -> Any:
    return compiled("gpu_trust.cu", name, tuple((key, getattr(trust, key)) for key in _CONSTANTS))
