"""Trust weights of the clients, from how their updates relate to each other and to the model.

No gradient is needed here: the inner products of the clients' update histories (n x n) and a few
statistics per client are enough. All weights lie between 0 and 1. A typical client has weight 1, so
a client can lose weight by being unlike the others, but never gain any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.linalg.vectors import row, set_row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

TINY = 1e-30  # keeps denominators above 0
CENTRE_ITERATIONS = 3  # the centre depends on the weights, and the weights on the centre
MIN_SQUARED_DISTANCE = 1e-4  # from the centre; nearer than that a direction means nothing
# Relative to the median client's consistency: no weight below one, full weight above the other.
MIN_CONSISTENCY, FULL_CONSISTENCY = 0.1, 0.3
NOISE_ALLOWANCE = 0.005  # added to every consistency: changing norms distort the share of noise
# Relative to the median client's curvature, likewise.
MIN_CURVATURE, FULL_CURVATURE = 0.25, 0.75
MIN_OBSERVATIONS = 3  # of a client's curvature before it affects the client's weight
FULL_STEP_CLIENTS = 10  # known clients from which steps have full length; of fewer, most could lie


def lower_median(values: Float[Tensor, " n"], which: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """The median of the values marked, of two middle ones the smaller; infinite without any.

    >>> values, which = torch.tensor([5.0, 1.0, 3.0, 9.0]), torch.tensor([True, True, True, False])
    >>> secureafl.lower_median(values, which)
    tensor(3.)
    """
    ordered = torch.where(which, values, torch.inf).sort().values
    return row(ordered, (which.sum() - 1).clamp(min=0) // 2)


def rise(values: Float[Tensor, " n"], start: float, end: float) -> Float[Tensor, " n"]:
    """From 0, where values are `start` or less, to 1, where they are `end` or more.

    >>> from secureafl.core.trust import rise
    >>> rise(torch.tensor([1.0, 2.5, 9.0]), start=2, end=3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return ((values - start) / (end - start)).clamp(min=0, max=1)


def similarity_weights(
    gram: Float[Tensor, "n n"],
    known: Bool[Tensor, " n"],
    similarity_penalty: float,
    disagreement_penalty: float,
) -> Float[Tensor, " n"]:
    """Weights of the known clients from the inner products of their update histories; 0 for others.

    Clients are compared by the cosines of their directions, seen from the weighted mean direction.
    The *similarity penalty* keeps the joint weight of many alike clients near that of a group of
    median size. The *disagreement penalty* lowers the weight of a client whose direction opposes
    those of others more than is typical.
    """
    directions = cosines(gram, known)
    weights = known.to(gram.dtype)
    for _ in range(CENTRE_ITERATIONS):
        products = centred(directions, weights / weights.sum().clamp(min=TINY))
        seen = cosines(products, known, MIN_SQUARED_DISTANCE)
        weights = _penalised_weights(
            seen.clamp(min=0) ** 2,
            seen.clamp(max=0) ** 2,
            known,
            similarity_penalty,
            disagreement_penalty,
        )
    return weights


def cosines(
    products: Float[Tensor, "n n"], known: Bool[Tensor, " n"], smallest: float = TINY
) -> Float[Tensor, "n n"]:
    """Cosines from inner products, 0 for clients that are not known.

    Squared lengths below `smallest` are taken for that.
    """
    scale = torch.where(known, products.diagonal().clamp(min=smallest).rsqrt(), 0)
    return products * scale[:, None] * scale


def centred(products: Float[Tensor, "n n"], centre: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Inner products as seen from the mean with these weights."""
    along = products @ centre
    return products - along[:, None] - along + centre @ along


def _penalised_weights(
    agreement: Float[Tensor, "n n"],
    disagreement: Float[Tensor, "n n"],
    known: Bool[Tensor, " n"],
    similarity_penalty: float,
    disagreement_penalty: float,
) -> Float[Tensor, " n"]:
    """Weights from the squared cosines above 0 (`agreement`) and below (`disagreement`)."""
    group_size = agreement.sum(dim=1).clamp(min=1)  # a client agrees with itself
    relative_size = lower_median(group_size, known) / group_size
    weights = torch.where(known, relative_size.clamp(max=1) ** similarity_penalty, 0)
    # Weighted, so that a group opposes others with no more than the group's own weight.
    support = torch.maximum(agreement @ weights, weights)
    opposition = disagreement @ weights
    share = support / (support + opposition).clamp(min=TINY)
    share = (share / lower_median(share, known).clamp(min=TINY)).clamp(max=1)
    return torch.where(known, weights * share**disagreement_penalty, 0)


class ConsistencyStats(NamedTuple):
    """Per client, what the squared norm of its update history is compared with.

    A client's update history is a moving average of its uploads. Independent noise averages out, to
    a share of its mean square that follows from the weights of the average alone.
    """

    mean_square_norm: Float[Tensor, " n"]  # moving average over the clipped uploads
    noise: Float[Tensor, " n"]  # share of it that is left in an average of pure noise


def no_consistency(num_clients: int, device: torch.device) -> ConsistencyStats:
    """The statistics before the first upload."""
    zeros = torch.zeros(num_clients, dtype=torch.float64, device=device)
    return ConsistencyStats(zeros, zeros.clone())


def update_consistency(
    consistency: ConsistencyStats,
    client: Int[Tensor, ""],
    known: Bool[Tensor, ""],
    squared: Float[Tensor, ""],
    memory: float,
) -> None:
    """Add an upload of this squared norm, in place; a client not `known` before starts anew."""
    yes, kept = torch.ones_like(known), memory * known.double()
    mean_square_norm, noise = (row(kind, client) for kind in consistency)
    set_row(consistency.mean_square_norm, client, torch.lerp(squared, mean_square_norm, kept), yes)
    set_row(consistency.noise, client, kept**2 * noise + (1 - kept) ** 2, yes)


def consistency_weights(
    consistency: ConsistencyStats, squared: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weights from the share of a client's update history that is not noise, next to the median's.

    `squared` are the squared norms of the histories. A client with few uploads keeps weight 1, and
    so do all where the median client's updates are mostly noise.
    """
    noise = consistency.noise
    share = squared / consistency.mean_square_norm.clamp(min=TINY) - noise
    share = share / (1 - noise).clamp(min=0.5)
    rated = known & (noise < 0.5)
    return _relative_weights(share, NOISE_ALLOWANCE, rated, MIN_CONSISTENCY, FULL_CONSISTENCY)


class CurvatureStats(NamedTuple):
    """Per client, moving moments of cos(s, y): the model moved by s, the client's upload by y.

    The cosine has the sign of the curvature of the client's loss along the model's path. It is
    positive on average for a loss the model is trained on, negative for a reversed one, and about 0
    for noise, which does not depend on the model.
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
) -> CurvatureStats:
    """Add a client's cosine where `keep` holds, in place; older ones decay by `memory`."""
    count = row(curvature.count, client)
    rate = (1 / (count + 1).double()).clamp(min=1 - memory)
    mean, variance = row(curvature.mean, client), row(curvature.variance, client)
    deviation = cosine - mean
    set_row(curvature.mean, client, mean + rate * deviation, keep)
    set_row(curvature.variance, client, (1 - rate) * (variance + rate * deviation**2), keep)
    set_row(curvature.count, client, count + 1, keep)
    return curvature


def curvature_weights(
    curvature: CurvatureStats, memory: float, among: Bool[Tensor, " n"], credit: float = 1.0
) -> Float[Tensor, " n"]:
    """Weights from the mean curvature of each client, next to the median of those marked.

    A client is given so many standard errors of its mean as a credit. Where the median is not
    positive, the curvature tells nothing and all have weight 1.
    """
    rated = (curvature.count >= MIN_OBSERVATIONS) & among
    samples = curvature.count.clamp(min=1, max=effective_samples(memory))
    error = credit * (curvature.variance / samples).sqrt()
    return _relative_weights(curvature.mean, error, rated, MIN_CURVATURE, FULL_CURVATURE)


def effective_samples(memory: float) -> int:
    """The number of values whose plain mean varies as much as a moving average with this memory."""
    return round((1 + memory) / max(1 - memory, 1e-3))


def _relative_weights(
    values: Float[Tensor, " n"],
    allowance: Float[Tensor, " n"] | float,
    rated: Bool[Tensor, " n"],
    lowest: float,
    full: float,
) -> Float[Tensor, " n"]:
    """Weights that rise from 0, at `lowest` times the median of those rated, to 1, at `full` times.

    The allowance is added to each value but not to the median. Clients that are not rated have
    weight 1, and so has everybody where the median is not above 0.
    """
    median = lower_median(values, rated)
    weights = rise((values + allowance) / median.clamp(min=TINY), lowest, full)
    return torch.where(rated & (median > 0) & (median < torch.inf), weights, 1.0)


class ClientStats(NamedTuple):
    """All statistics that trust weights are computed from; row k is client k's."""

    norms: Float[Tensor, " n"]  # of the last uploads
    consistency: ConsistencyStats
    curvature: CurvatureStats
    gram: Float[Tensor, "n n"]  # inner products of the update histories
    freshness: Float[Tensor, " n"]  # decays with every arrival since the client's last upload


def no_client_stats(num_clients: int, device: torch.device) -> ClientStats:
    """The statistics before the first upload."""
    zeros = torch.zeros(num_clients, num_clients, dtype=torch.float64, device=device)
    consistency, curvature = no_consistency(num_clients, device), no_curvature(num_clients, device)
    return ClientStats(zeros[0].clone(), consistency, curvature, zeros, zeros[0].clone())


class TrustConfig(NamedTuple):
    """Which properties lower a client's weight, and how sharply."""

    memory: float  # of update histories and curvature
    arrival_decay: float
    similarity_penalty: float
    disagreement_penalty: float
    consistency: bool
    curvature: bool


class TrustWeights(NamedTuple):
    """The weights after an upload."""

    own: Float[Tensor, ""]  # trust weight of the client that uploaded
    total: Float[Tensor, ""]  # of all clients' trust weights, after decay
    shares: Float[Tensor, " n"]  # of each recent update in the step, in the updates' dtype


def weigh_clients(
    stats: ClientStats,
    known: Bool[Tensor, " n"],
    client: Int[Tensor, ""],
    products: Float[Tensor, " n"],
    config: TrustConfig,
) -> TrustWeights:
    """See `kernels.operations.weigh_clients`."""
    index, exact = client.view(1), products.to(stats.gram.dtype)
    stats.gram.index_copy_(0, index, exact[None])
    stats.gram.index_copy_(1, index, exact[:, None])
    trust = trust_weights(stats, known, config)
    # An old update was computed at a model that the server has left.
    weights = trust * stats.freshness.mul_(config.arrival_decay).index_fill_(0, index, 1)
    total = weights.sum()
    length = (known.to(total.dtype).sum() / min(FULL_STEP_CLIENTS, len(known))).clamp(max=1)
    shares = (weights / total.clamp(min=TINY)) * length
    return TrustWeights(row(trust, client), total, shares.to(products.dtype))


def trust_weights(
    stats: ClientStats, known: Bool[Tensor, " n"], config: TrustConfig
) -> Float[Tensor, " n"]:
    """The weight of each client from all its statistics; 0 for clients that are not known.

    Clients that send only noise are left out of the other comparisons: noise is similar to nobody,
    and noise that moved the model and is gone looks like positive curvature.
    """
    weights = known.to(stats.gram.dtype)
    if config.consistency:
        weights = weights * consistency_weights(stats.consistency, stats.gram.diagonal(), known)
    consistent = weights > 0
    weights = weights * similarity_weights(
        stats.gram, consistent, config.similarity_penalty, config.disagreement_penalty
    )
    if not config.curvature:
        return weights
    return weights * curvature_weights(stats.curvature, config.memory, consistent)
