"""Trust weights (`core.trust`) on a CPU, in NumPy.

Plain torch takes several times as long for these many short operations, and each of them releases
Python's lock, which gives another thread the chance to keep it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from secureafl.core import trust
from secureafl.core.trust import TINY, TrustWeights
from secureafl.kernels.cpu_clipping import relative_weights
from secureafl.kernels.cpu_peers import lower_median

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.trust import ClientStats, TrustConfig
    from secureafl.core.types import SecantProducts

_LANES = 8  # partial sums of a column


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
    i = int(client)
    known_before, ss, sy, yy, squared = (field.item() for field in secant)
    product = math.sqrt(ss * yy)
    if known_before and 0 < product < math.inf:
        _update_curvature(stats, i, sy / product, memory)
    known.numpy()[i] = True
    norm, norms = math.sqrt(squared), stats.norms.numpy()
    norms[i] = clipped = norm if known_before else min(norm, clip_norm)
    if clip_to_median_norm:
        clipped = min(clipped, lower_median(norms[known.numpy()]))
    scale = clipped / norm if norm > clipped else 1.0
    kept, squared = memory * known_before, squared * scale**2
    mean_square_norm, noise = (kind.numpy() for kind in stats.consistency)
    mean_square_norm[i] = squared + kept * (mean_square_norm[i] - squared)
    noise[i] = kept**2 * noise[i] + (1 - kept) ** 2
    return torch.tensor(scale, dtype=torch.float64)


def _update_curvature(stats: ClientStats, i: int, cosine: float, memory: float) -> None:
    """See `core.trust.update_curvature`."""
    mean, variance, count = (kind.numpy() for kind in stats.curvature)
    rate = max(1 / (count[i] + 1), 1 - memory)
    deviation = cosine - mean[i]
    mean[i] += rate * deviation
    variance[i] = (1 - rate) * (variance[i] + rate * deviation**2)
    count[i] += 1


def weigh_clients(
    stats: ClientStats, known: Tensor, client: Tensor, products: Tensor, config: TrustConfig
) -> TrustWeights:
    """See `kernels.operations.weigh_clients`."""
    i, gram, freshness = int(client), stats.gram.numpy(), stats.freshness.numpy()
    gram[i] = gram[:, i] = products.numpy()
    weights = _trust_weights(stats, known.numpy(), config)
    freshness *= config.arrival_decay
    freshness[i] = 1
    decayed = weights * freshness
    total = decayed.sum()
    length = min(known.numpy().sum() / min(trust.FULL_STEP_CLIENTS, len(gram)), 1.0)
    shares = torch.from_numpy(decayed * (length / max(total, TINY))).to(products.dtype)
    return TrustWeights(torch.tensor(weights[i]), torch.tensor(total), shares)


def _trust_weights(stats: ClientStats, known: np.ndarray, config: TrustConfig) -> np.ndarray:
    """See `core.trust.trust_weights`."""
    weights, gram = known.astype(np.float64), stats.gram.numpy()
    if config.consistency:
        mean_square_norm, noise = (kind.numpy() for kind in stats.consistency)
        share = gram.diagonal() / np.maximum(mean_square_norm, TINY) - noise
        share /= np.maximum(1 - noise, 0.5)
        bounds = trust.MIN_CONSISTENCY, trust.FULL_CONSISTENCY
        weights *= relative_weights(share, trust.NOISE_ALLOWANCE, known & (noise < 0.5), *bounds)
    consistent = weights > 0
    penalties = config.similarity_penalty, config.disagreement_penalty
    weights *= _similarity_weights(gram, consistent, *penalties)
    if config.curvature:
        mean, variance, count = (kind.numpy() for kind in stats.curvature)
        error = np.sqrt(variance / np.clip(count, 1, trust.effective_samples(config.memory)))
        rated = (count >= trust.MIN_OBSERVATIONS) & consistent
        bounds = trust.MIN_CURVATURE, trust.FULL_CURVATURE
        weights *= relative_weights(mean, error, rated, *bounds)
    return weights


def similarity_weights(
    gram: Tensor, known: Tensor, similarity_penalty: float, disagreement_penalty: float
) -> Tensor:
    """See `kernels.operations.similarity_weights`."""
    exact = gram.numpy().astype(np.float64)
    penalties = similarity_penalty, disagreement_penalty
    return torch.from_numpy(_similarity_weights(exact, known.numpy(), *penalties)).to(gram.dtype)


def _similarity_weights(
    gram: np.ndarray, known: np.ndarray, similarity_penalty: float, disagreement_penalty: float
) -> np.ndarray:
    """See `core.trust.similarity_weights`. Sums run over the columns of matrices."""
    weights = present = known.astype(np.float64)
    scale = present / np.sqrt(np.maximum(gram.diagonal(), TINY))
    cosines = gram * scale[:, None] * scale
    for _ in range(trust.CENTRE_ITERATIONS):
        centre = scale * (weights / max(weights.sum(), TINY))
        towards = _sums(gram * centre[:, None])
        along, middle = scale * towards, centre @ towards
        squared = gram.diagonal() * scale**2 - 2 * along + middle
        unit = present / np.sqrt(np.maximum(squared, trust.MIN_SQUARED_DISTANCE))
        centred = (cosines - along[:, None] - (along - middle)) * unit[:, None] * unit
        agreement, disagreement = np.maximum(centred, 0) ** 2, np.minimum(centred, 0) ** 2
        group_size = np.maximum(_sums(agreement), 1)
        relative_size = np.minimum(lower_median(group_size[known]) / group_size, 1)
        weights = present * relative_size**similarity_penalty
        support = np.maximum(_sums(agreement * weights[:, None]), weights)
        opposition = _sums(disagreement * weights[:, None])
        share = support / np.maximum(support + opposition, TINY)
        share = np.minimum(share / max(lower_median(share[known]), TINY), 1)
        weights = weights * share**disagreement_penalty
    return weights


def _sums(matrix: np.ndarray) -> np.ndarray:
    """Of each column, in a fixed order; that of a product of matrices depends on its threads."""
    whole = len(matrix) // _LANES * _LANES
    lanes = matrix[:whole].reshape(-1, _LANES, matrix.shape[1]).sum(axis=0)
    return np.concatenate([lanes, matrix[whole:]]).sum(axis=0)
