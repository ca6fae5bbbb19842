"""How far each client is trusted, from what the clients say of each other and of the model's way.

Nothing here sees a gradient: the inner products of what the clients say (n x n) are enough. All
weights lie between 0 and 1. A weight of 1 is what a typical client has, so a client can lose by
being unlike the others, but never gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.linalg.vectors import row, set_row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

TURNS = 3  # the centre follows the weights, and they the centre
TINY = 1e-30
CENTRAL = 1e-4  # squared: who stands in the middle up to a hundredth stands with and against nobody
SILENT, SAYS = 0.1, 0.3  # of what the usual record says: no trust below, full trust above
DOUBT = 0.005  # of a record's square, which lengths that change may leave of noise
LEAST, ENOUGH = 0.25, 0.75  # of the usual bend: no trust below, full trust above
SEEN = 3  # changes of a client before its bend is judged
FEW = 10  # clients: of so few most could be liars


def lower_median(values: Float[Tensor, " n"], which: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Of the values marked, the middle one, the smaller of two; infinite if there are none.

    >>> values, which = torch.tensor([5.0, 1.0, 3.0, 9.0]), torch.tensor([True, True, True, False])
    >>> secureafl.lower_median(values, which)
    tensor(3.)
    """
    ordered = torch.where(which, values, torch.inf).sort().values
    return row(ordered, (which.sum() - 1).clamp(min=0) // 2)


def similarity_weights(
    gram: Float[Tensor, "n n"],
    known: Bool[Tensor, " n"],
    similarity_penalty: float,
    disagreement_penalty: float,
) -> Float[Tensor, " n"]:
    """Weights of the known clients, from the inner products of what they say; 0 for others.

    What counts is where a client stands, seen from the middle of all: whom it stands with, and who
    stands against it. *Crowding*: many who say the same have together hardly more weight than a
    usual crowd. *Approval*: who is contradicted more than others loses weight.
    """
    scale = torch.where(known, gram.diagonal().clamp(min=TINY).rsqrt(), 0)
    alike = gram * scale[:, None] * scale
    weights = known.to(gram.dtype)
    for _ in range(TURNS):
        angles = _angles(alike, weights / weights.sum().clamp(min=TINY), known)
        weights = _weights(
            angles.clamp(min=0) ** 2,
            angles.clamp(max=0) ** 2,
            known,
            similarity_penalty,
            disagreement_penalty,
        )
    return weights


def _angles(
    alike: Float[Tensor, "n n"], centre: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """Cosines of the angles between known clients, seen from the centre with these weights."""
    along = alike @ centre
    seen = alike - along[:, None] - along + centre @ along
    scale = torch.where(known, seen.diagonal().clamp(min=CENTRAL).rsqrt(), 0)
    return seen * scale[:, None] * scale


def _weights(
    agree: Tensor,
    oppose: Tensor,
    known: Tensor,
    similarity_penalty: float,
    disagreement_penalty: float,
) -> Float[Tensor, " n"]:
    crowd = agree.sum(dim=1).clamp(min=1)  # everybody agrees with itself
    weights = torch.where(
        known, (lower_median(crowd, known) / crowd).clamp(max=1) ** similarity_penalty, 0
    )
    # A crowd's word against others weighs no more than the crowd itself.
    backing, blame = torch.maximum(agree @ weights, weights), oppose @ weights
    share = backing / (backing + blame).clamp(min=TINY)
    share = (share / lower_median(share, known).clamp(min=TINY)).clamp(max=1)
    return torch.where(known, weights * share**disagreement_penalty, 0)


class ConsistencyStats(NamedTuple):
    """Of each client: how much of its record noise alone would leave.

    Noise says something else every time, so hardly any of it stays in a record. How much does, is
    known: every upload's share in the record squared.
    """

    mean_square_norm: Float[Tensor, " n"]  # mean square of what counted of the uploads' lengths
    noise: Float[Tensor, " n"]  # share of it that a record of noise has


def no_consistency(num_clients: int, device: torch.device) -> ConsistencyStats:
    """Nothing has been said yet."""
    nothing = torch.zeros(num_clients, dtype=torch.float64, device=device)
    return ConsistencyStats(nothing, nothing.clone())


def update_consistency(
    consistency: ConsistencyStats, client: Tensor, heard: Tensor, squared: Tensor, memory: float
) -> None:
    """One more upload of a client's, of this squared length, in place."""
    yes, kept = torch.ones_like(heard), memory * heard.double()
    mean_square_norm, noise = (row(kind, client) for kind in consistency)
    set_row(consistency.mean_square_norm, client, torch.lerp(squared, mean_square_norm, kept), yes)
    set_row(consistency.noise, client, kept**2 * noise + (1 - kept) ** 2, yes)


def consistency_weights(
    consistency: ConsistencyStats, squared: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weights from how much of a record is no noise, next to what is usual.

    `squared`: of the records' lengths. Nobody is judged by a few uploads, nor if the usual client
    says next to nothing.
    """
    noise = consistency.noise
    judged = known & (noise < 0.5)
    said = (squared / consistency.mean_square_norm.clamp(min=TINY) - noise) / (1 - noise).clamp(
        min=0.5
    )
    return _next_to_usual(said, DOUBT, judged, SILENT, SAYS)


class CurvatureStats(NamedTuple):
    """Of each client: how its loss bends along the model's way.

    An upload changed by y while the model moved by s: the cosine between them says whether the
    client's loss bends upwards. That of who is trained for does, on average; that of who sends the
    reverse bends downwards, and noise knows nothing of the model.
    """

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    count: Int[Tensor, " n"]


def no_curvature(num_clients: int, device: torch.device) -> CurvatureStats:
    """Nothing has been seen yet."""
    nothing = torch.zeros(num_clients, dtype=torch.float64, device=device)
    return CurvatureStats(nothing, nothing.clone(), torch.zeros_like(nothing, dtype=torch.int64))


def update_curvature(
    curvature: CurvatureStats, client: Tensor, cosine: Tensor, keep: Bool[Tensor, ""], memory: float
) -> CurvatureStats:
    """One more of a client's, in place; older ones fade by `memory`."""
    count = row(curvature.count, client)
    rate = (1 / (count + 1).double()).clamp(min=1 - memory)
    mean, variance = row(curvature.mean, client), row(curvature.variance, client)
    away = cosine - mean
    set_row(curvature.mean, client, mean + rate * away, keep)
    set_row(curvature.variance, client, (1 - rate) * (variance + rate * away**2), keep)
    set_row(curvature.count, client, count + 1, keep)
    return curvature


def curvature_weights(
    curvature: CurvatureStats, memory: float, among: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weights from how the clients' losses bend, next to what is usual among some.

    A client has the benefit of the doubt by one standard error. Where the usual loss does not bend
    upwards, nobody can be told by this.
    """
    judged = (curvature.count >= SEEN) & among
    numbers = curvature.count.clamp(min=1, max=remembered(memory))
    error = (curvature.variance / numbers).sqrt()
    return _next_to_usual(curvature.mean, error, judged, LEAST, ENOUGH)


def remembered(memory: float) -> int:
    """How many numbers a decaying mean of them is worth."""
    return round((1 + memory) / max(1 - memory, 1e-3))


def _next_to_usual(
    values: Tensor, doubt: Tensor | float, judged: Tensor, least: float, enough: float
) -> Float[Tensor, " n"]:
    """Weights from 0, at `least` of the median of those judged, to 1, at `enough` of it.

    `doubt` is to a client's credit. Who is not judged has 1, and so has everybody where the median
    is not above 0.
    """
    usual = lower_median(values, judged)
    ratio = (values + doubt) / usual.clamp(min=TINY)
    weights = ((ratio - least) / (enough - least)).clamp(min=0, max=1)
    return torch.where(judged & (usual > 0) & (usual < torch.inf), weights, 1.0)


class ClientStats(NamedTuple):
    """All that is noted of the clients, in numbers."""

    lengths: Float[Tensor, " n"]  # of the last uploads
    consistency: ConsistencyStats
    curvature: CurvatureStats
    gram: Float[Tensor, "n n"]  # inner products of the records
    fresh: Float[Tensor, " n"]  # what the time since each client's word leaves of it


def no_client_stats(num_clients: int, device: torch.device) -> ClientStats:
    """Nothing is known of anybody."""
    nothing = torch.zeros(num_clients, num_clients, dtype=torch.float64, device=device)
    consistency, curvature = no_consistency(num_clients, device), no_curvature(num_clients, device)
    return ClientStats(nothing[0].clone(), consistency, curvature, nothing, nothing[0].clone())


class TrustConfig(NamedTuple):
    """What makes a client count less, and how sharply."""

    memory: float  # of records and bends
    arrival_decay: float
    similarity_penalty: float
    disagreement_penalty: float
    consistency: bool
    curvature: bool


class TrustWeights(NamedTuple):
    """What the clients' words count for, now that one has spoken."""

    own: Float[Tensor, ""]  # its trust
    total: Float[Tensor, ""]  # of all trust, after decay
    shares: Float[Tensor, " n"]  # of the words in the step, in their dtype


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
    # An old word answers a model that is gone.
    weights = trust * stats.fresh.mul_(config.arrival_decay).index_fill_(0, index, 1)
    total = weights.sum()
    # Until more clients are known, steps are shorter.
    enough = (known.to(total.dtype).sum() / min(FEW, len(known))).clamp(max=1)
    shares = (weights / total.clamp(min=TINY)) * enough
    return TrustWeights(row(trust, client), total, shares.to(products.dtype))


def trust_weights(
    stats: ClientStats, known: Bool[Tensor, " n"], config: TrustConfig
) -> Float[Tensor, " n"]:
    """Each client's weight, from everything that is noted; 0 for who is not known.

    Who only makes noise is left out of all else that is asked: it stands with nobody, and noise
    that moved the model and is gone looks like upward curvature.
    """
    weights = known.to(stats.gram.dtype)
    if config.consistency:
        weights = weights * consistency_weights(stats.consistency, stats.gram.diagonal(), known)
    heard = weights > 0
    weights = weights * similarity_weights(
        stats.gram, heard, config.similarity_penalty, config.disagreement_penalty
    )
    return (
        weights * curvature_weights(stats.curvature, config.memory, heard)
        if config.curvature
        else weights
    )
