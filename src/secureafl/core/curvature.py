"""Trust from curvature: whether uploads change with the model as gradients of a loss do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.linalg.rows import TINY, lower_median, rise
from secureafl.linalg.vectors import row, set_row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

# Relative to the median client's curvature: no weight below one, full weight above the other.
MIN_CURVATURE, FULL_CURVATURE = 0.25, 0.75
MIN_OBSERVATIONS = 5  # of a client's curvature before it affects the client's weight


class CurvatureStats(NamedTuple):
    """Per client, moving moments of cos(s, y): the model moved by s, the client's upload by y.

    The cosine has the sign of the curvature of the client's loss along the model's path. It is
    positive on average for a loss the model is trained on, negative for a reversed one, and about 0
    for noise, which does not depend on the model. Which part of the model's move is taken for s is
    the caller's choice.
    """

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    count: Int[Tensor, " n"]


def no_curvature(num_clients: int, device: torch.device) -> CurvatureStats:
    """The statistics before the first observation."""
    zeros = torch.zeros(num_clients, dtype=torch.float64, device=device)
    return CurvatureStats(zeros, zeros.clone(), torch.zeros_like(zeros, dtype=torch.int64))


def update_curvature(
    curvature: CurvatureStats,
    client: Int[Tensor, ""],
    cosine: Float[Tensor, ""],
    keep: Bool[Tensor, ""],
    memory: float,
) -> None:
    """Add a client's cosine where `keep` holds, in place; older ones decay by `memory`."""
    count = row(curvature.count, client)
    rate = (1 / (count + 1).double()).clamp(min=1 - memory)
    mean, variance = row(curvature.mean, client), row(curvature.variance, client)
    deviation = cosine - mean
    set_row(curvature.mean, client, mean + rate * deviation, keep)
    set_row(curvature.variance, client, (1 - rate) * (variance + rate * deviation**2), keep)
    set_row(curvature.count, client, count + 1, keep)


def curvature_weights(
    curvature: CurvatureStats, memory: float, among: Bool[Tensor, " n"], credit: float
) -> Float[Tensor, " n"]:
    """Weights from the mean curvature of each client, next to the median of those marked.

    They rise from 0, at `MIN_CURVATURE` times the median, to 1, at `FULL_CURVATURE` times. A client
    is given so many standard errors of its mean as a credit. Who is not marked or was seen too
    rarely has weight 1, and so has everybody where the median is not positive.
    """
    rated = (curvature.count >= MIN_OBSERVATIONS) & among
    samples = curvature.count.clamp(min=1, max=effective_samples(memory))
    error = credit * (curvature.variance / samples).sqrt()
    median = lower_median(curvature.mean, rated)
    relative = (curvature.mean + error) / median.clamp(min=TINY)
    weights = rise(relative, MIN_CURVATURE, FULL_CURVATURE)
    return torch.where(rated & (median > 0) & (median < torch.inf), weights, 1.0)


def effective_samples(memory: float) -> int:
    """The number of values whose plain mean varies as much as a moving average with this memory."""
    return round((1 + memory) / max(1 - memory, 1e-3))
