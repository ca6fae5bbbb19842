"""Trust from neighbours: clients whose update histories point the same way but for one direction.

Honest clients with similar data send similar updates. A client then differs from the mean of its
neighbours by noise, a little in many directions. Malicious clients that hide a common aim behind
honest gradients, their own or copies of others', have honest neighbours too, and differ from them
by that aim: all of them in one direction. So the direction is looked for in which clients differ
most from their neighbours. Where it holds much of all differences, and some clients are far out on
one side of it, they are a *camp*, and lose their weight.

Clients of one kind can be far out as well: those with boots, among neighbours with sneakers. But
they are alike in everything else, while members of a camp are as diverse as all clients. Who has no
neighbours is not judged, and nobody is where there is no majority.

Who is not trusted is nobody's neighbour. So a camp that was found is compared with honest clients
only and stays found, as long as it goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.peers import FEWEST, NOTHING, centred, cosines, peer_weights, scaled
from secureafl.linalg.rows import TINY, lower_median, rise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

NEAR = 0.6  # the cosine from which on clients are neighbours; they count by what exceeds it
FEW_NEIGHBOURS = 0.3  # with so much in sum, a client's difference from them counts half
POWERS = 16  # iterations that find an axis; one that matters is twice as strong as the next
SMALLEST_CAMP = 3  # members; fewer differ by chance, and do little harm
TRUSTED = 0.5  # clients from this trust on say what is usual
# A camp loses weight from the first of two numbers on, and all of it from the second, if all are
# large. How much of all differences from neighbours lies in the direction, and of all that is sent.
COMMON, MOST = 0.35, 0.45
SMALL, LARGE = 0.02, 0.03
# How much of the variance along the direction lies between the camp and all others: of a Gaussian
# it is 0.64, of two points 1.
APART, QUITE_APART = 0.68, 0.72
# How far the camp's members are from each other without the direction, in squares, next to all
# clients and beyond noise, of which there is at most so much: 0 if they are of one kind, and 1 if
# they are drawn from all clients.
ALIKE, DIVERSE = 0.2, 0.35
NOISIEST = 0.9
# In how many directions clients differ without it, and how much that is of all that is sent: where
# there are two kinds of clients only, and the direction leads from one to the other, all are alike.
FEW_KINDS, MANY_KINDS = 2.5, 3.5
HIDDEN, VISIBLE = 0.12, 0.2
# Who is a member, in part from the first number on: by how much more than the median client it
# differs from its neighbours, in standard deviations of those who are no members; and by that, and
# by where it is itself, in the camp's mean. Who differs because its neighbours are malicious is
# where others are.
USUAL, UNUSUAL = 3.0, 5.0
NEARER, HALFWAY = 0.25, 0.5
DEVIATION = 1.4826  # of a Gaussian, in medians of the absolute deviation


class Axis(NamedTuple):
    """A principal axis of vectors, one for each client, of which only inner products are known."""

    positions: Float[Tensor, " n"]  # of the clients along it, scaled to length 1
    strength: Float[Tensor, ""]  # the sum of the squares of what they were


class Difference(NamedTuple):
    """The direction in which clients differ most from their neighbours."""

    differences: Float[Tensor, " n"]  # positions of what neighbours leave
    clients: Float[Tensor, " n"]  # positions of the clients themselves
    common: Float[Tensor, ""]  # share of all differences that lies in it
    size: Float[Tensor, ""]  # what lies in it, as a share of all that is sent
    noise: Float[Tensor, ""]  # the variance that neighbours leave of a client in all others


def trust_weights(
    gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"], trust: Float[Tensor, " n"] | None
) -> Float[Tensor, " n"]:
    """Weights from peers (`core.peers`) and, with the trust so far, from neighbours."""
    weights = peer_weights(gram, known)
    return weights if trust is None else weights * neighbour_weights(gram, known, trust)


def neighbour_weights(
    gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"], trust: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weights from how clients differ from neighbours that are trusted so far; 0 for the unknown.

    Who a client's neighbours are is asked twice: of all that it sends, and of what is left
    without the direction in which clients differ most, where a large aim hides who is near.

    >>> from secureafl.core.neighbours import neighbour_weights
    >>> gram, known = torch.eye(3, dtype=torch.float64), torch.tensor([True, True, False])
    >>> neighbour_weights(gram, known, trust=torch.ones(3, dtype=torch.float64))
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    if len(known) < FEWEST:
        return known.to(gram.dtype)
    voice = trust * known
    centre = voice / voice.sum().clamp(min=TINY)
    products = centred(scaled(gram, known), centre) * known[:, None] * known
    positions, strength = principal_axis(products)
    hidden = torch.zeros_like(positions), positions * strength.sqrt()
    found = (_camp_weights(products, positions, known, voice) for positions in hidden)
    weights = torch.mul(*found)
    minority = 2 * (1 - weights).sum() < known.sum()
    return torch.where(known, torch.where(minority, weights, 1), 0)


def _camp_weights(
    products: Float[Tensor, "n n"],
    hidden: Float[Tensor, " n"],
    known: Bool[Tensor, " n"],
    voice: Float[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """Weights from a camp among clients that are near each other but for `hidden` positions.

    Neighbours depend on the direction, and the direction on the neighbours, so they are looked for
    again. The third time the camp has no voice: honest clients differ from malicious neighbours.
    """
    for _ in range(2):
        found = _common_difference(products, hidden, known, voice)
        hidden = found.clients
    _, camp = split(found.differences, known)
    found = _common_difference(products, hidden, known, voice * ~camp)
    apart, camp = split(found.differences, known)
    members = _members(found, camp, known & (voice >= TRUSTED))
    size, count = members.sum(), known.sum()
    seen = products - torch.outer(hidden, hidden)
    usual = _variance(seen, known.to(seen.dtype)).clamp(min=NOTHING)
    noise = (found.noise / usual).clamp(max=NOISIEST)
    diversity = (_variance(seen, members) / usual - noise) / (1 - noise)
    kinds = seen.trace() ** 2 / seen.square().sum().clamp(min=NOTHING)
    certainty = (
        rise(found.common, COMMON, MOST)
        * rise(found.size, SMALL, LARGE)
        * rise(apart, APART, QUITE_APART)
        * rise(diversity, ALIKE, DIVERSE)
        * rise(kinds, FEW_KINDS, MANY_KINDS)
        * rise(seen.trace() / products.trace().clamp(min=NOTHING), HIDDEN, VISIBLE)
        * (count >= FEWEST)
        * (size >= SMALLEST_CAMP)
    )
    return 1 - certainty * members


def _common_difference(
    products: Float[Tensor, "n n"],
    hidden: Float[Tensor, " n"],
    known: Bool[Tensor, " n"],
    voice: Float[Tensor, " n"],
) -> Difference:
    contrast = _contrast(products - torch.outer(hidden, hidden), known, voice)
    differences = contrast @ products @ contrast.T
    positions, strength = principal_axis(differences)
    along = products @ (contrast.T @ positions)
    length = (positions @ contrast @ along).clamp(min=NOTHING).sqrt()
    common = strength / differences.trace().clamp(min=NOTHING)
    size = strength / products.trace().clamp(min=NOTHING)
    judged = contrast.diagonal().square().sum()  # what is left of clients, counted in full
    noise = (differences.trace() - strength) / judged.clamp(min=NOTHING)
    return Difference(positions * strength.sqrt(), along / length, common, size, noise)


def _contrast(
    seen: Float[Tensor, "n n"], known: Bool[Tensor, " n"], voice: Float[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The matrix that takes each client's neighbours' mean from it; less where there are few."""
    near = (cosines(seen, known, NOTHING) - NEAR).clamp(min=0).fill_diagonal_(0) * voice
    total = near.sum(dim=1)
    eye = torch.eye(len(seen), dtype=seen.dtype, device=seen.device)
    share = total / (total + FEW_NEIGHBOURS)
    return (eye - near / total.clamp(min=TINY)[:, None]) * share[:, None]


def _members(
    found: Difference, camp: Bool[Tensor, " n"], trusted: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """How far each client is a member of the camp, from 0 to 1."""
    judged = found.differences != 0  # who has no neighbours differs from nobody
    usual = trusted & ~camp & judged
    away = _from_median(found.differences, usual)
    deviation = DEVIATION * lower_median(away.abs(), usual)  # infinite if nobody is usual
    mean = (away * camp).sum() / camp.sum().clamp(min=1)
    out = torch.minimum(away * mean.sign(), _from_median(found.clients, trusted) * mean.sign())
    by_deviation = rise(away * mean.sign() / deviation.clamp(min=TINY), USUAL, UNUSUAL)
    return judged * by_deviation * rise(out / mean.abs().clamp(min=TINY), NEARER, HALFWAY)


def _from_median(values: Float[Tensor, " n"], marked: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    return values - torch.where(marked.any(), lower_median(values, marked), 0)


def _variance(products: Float[Tensor, "n n"], weights: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Of vectors with these inner products, as an estimate from clients with these weights."""
    shares = weights / weights.sum().clamp(min=TINY)
    spread = shares @ products.diagonal() - shares @ products @ shares
    return spread / (1 - shares.square().sum()).clamp(min=NOTHING)


def principal_axis(products: Float[Tensor, "n n"]) -> Axis:
    """The axis along which vectors with these inner products are longest, by power iteration.

    >>> from secureafl.core.neighbours import principal_axis
    >>> principal_axis(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
    Axis(positions=tensor([1., 0.]), strength=tensor(4.))
    """
    found = products.index_select(1, products.diagonal().argmax().view(1)).squeeze(1)
    for _ in range(POWERS):
        found = products @ (found / found.norm().clamp(min=TINY))
    strength = found.norm()
    return Axis(found / strength.clamp(min=TINY), strength)


def split(
    values: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> tuple[Float[Tensor, ""], Bool[Tensor, " n"]]:
    """The share of the variance between the best two camps, and who is in the smaller one.

    Of all places to split the sorted values at it is the one with the largest share (Otsu, "A
    threshold selection method from gray-level histograms", 1979). Nobody is in the smaller camp if
    both are equal.

    >>> from secureafl.core.neighbours import split
    >>> split(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([True, True, True]))
    (tensor(1.), tensor([False, False,  True]))
    """
    count, number = known.sum(), torch.arange(1, len(values) + 1, device=values.device)
    order = torch.where(known, values, torch.inf).sort()
    ordered = torch.where(number <= count, order.values, 0)
    mean = ordered.sum() / count.clamp(min=1)
    spread = torch.where(number <= count, ordered - mean, 0)
    below, total = spread.cumsum(dim=0), spread.square().sum()
    between = below.square() * count / (number * (count - number)).clamp(min=1)
    between = torch.where(number < count, between, 0)
    best, place = between.max(dim=0)
    lower = torch.zeros_like(known).index_copy(0, order.indices, number <= place + 1) & known
    size = lower.sum()
    smaller = torch.where(2 * size < count, lower, ~lower & known) & (2 * size != count)
    return best / total.clamp(min=TINY), smaller
