"""Trust from neighbours: clients whose update histories point the same way but for one direction.

Honest clients with similar data send similar updates. A client then differs from the mean of its
neighbours by noise, a little in many directions. Malicious clients that hide a common aim behind
honest gradients, their own or copies of others', have honest neighbours too, and differ from them
by that aim: all of them in one direction. So the direction is looked for in which clients differ
most from their neighbours. Where it holds most of all differences, and clients fall into two camps
along it, the smaller camp loses its weight.

Natural camps are no such thing: clients with vehicles have their neighbours among clients with
vehicles. Who has no neighbours is not judged, and nobody is where there is no majority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.peers import NOTHING, centred, cosines, scaled
from secureafl.linalg.rows import TINY, lower_median, rise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

NEAR = 0.6  # the cosine from which on clients are neighbours; they count by what exceeds it
FEW_NEIGHBOURS = 0.3  # with so much in sum, a client's difference from them counts half
POWERS = 16  # iterations that find an axis; one that matters is twice as strong as the next
FEWEST = 20  # clients: among fewer, chance makes camps
SMALLEST_CAMP = 3  # members; fewer differ by chance, and do little harm
# A camp loses weight from the first of two numbers on, and all of it from the second, if all are
# large. How much of the variance along the direction lies between the two camps (of a Gaussian it
# is 0.64, of two points 1), with members of the camp among the neighbours and without.
APART, QUITE_APART = 0.68, 0.72
FAR, VERY_FAR = 0.76, 0.82
# How much of all differences from neighbours lies in the direction, and of all that is sent.
COMMON, MOST = 0.4, 0.5
SMALL, LARGE = 0.015, 0.03
# In how many directions clients differ from each other. Where there are two or three kinds of
# clients only, those that are near but for one direction can be of different kinds.
FEW_KINDS, MANY_KINDS = 3.0, 5.0


class Axis(NamedTuple):
    """A principal axis of vectors, one for each client, of which only inner products are known."""

    positions: Float[Tensor, " n"]  # of the clients along it, scaled to length 1
    strength: Float[Tensor, ""]  # the sum of the squares of what they were


class Difference(NamedTuple):
    """The direction in which clients differ most from their neighbours."""

    differences: Float[Tensor, " n"]  # positions of what neighbours leave, scaled to length 1
    clients: Float[Tensor, " n"]  # positions of the clients themselves
    certainty: Float[Tensor, ""]  # from 0 to 1


def neighbour_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from how clients differ from their neighbours; 0 for the unknown.

    Who a client's neighbours are is asked twice: of all that it sends, and of what is left
    without the direction in which clients differ most, where a large aim hides who is near.

    >>> from secureafl.core.neighbours import neighbour_weights
    >>> neighbour_weights(torch.eye(3, dtype=torch.float64), torch.tensor([True, True, False]))
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    alike = known.to(gram.dtype) / known.sum().clamp(min=1)
    products = centred(scaled(gram, known), alike) * known[:, None] * known
    positions, strength = principal_axis(products)
    hidden = torch.zeros_like(positions), positions * strength.sqrt()
    found = (_camp_weights(products, positions, known) for positions in hidden)
    return torch.where(known, torch.minimum(*found), 0)


def _camp_weights(
    products: Float[Tensor, "n n"], hidden: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weights from camps among clients that are near each other but for `hidden` positions.

    Neighbours depend on the direction, and the direction on the neighbours, so they are looked for
    again. Where a camp was found its members are nobody's neighbours any more: an honest client
    differs from malicious neighbours too.
    """
    camp, loss = torch.zeros_like(known), torch.ones_like(products[0, 0])
    found = _common_difference(products, hidden, known, camp)
    for limits in ((APART, QUITE_APART), (FAR, VERY_FAR)):
        found = _common_difference(products, found.clients, known, camp)
        apart, camp = split(found.differences, known)
        loss = loss * found.certainty * (camp.sum() >= SMALLEST_CAMP) * rise(apart, *limits)
    # Who differs because its neighbours moved away from it is in no camp of its own.
    sides = (_from_median(values, known) for values in (found.differences, found.clients))
    return 1 - loss * (camp & (torch.mul(*sides) > 0))


def _common_difference(
    products: Float[Tensor, "n n"],
    hidden: Float[Tensor, " n"],
    known: Bool[Tensor, " n"],
    excluded: Bool[Tensor, " n"],
) -> Difference:
    seen = products - torch.outer(hidden, hidden)
    contrast = _contrast(seen, known, excluded)
    differences = contrast @ products @ contrast.T
    positions, strength = principal_axis(differences)
    along = products @ (contrast.T @ positions)
    length = (positions @ contrast @ along).clamp(min=NOTHING).sqrt()
    kinds = seen.trace() ** 2 / seen.square().sum().clamp(min=NOTHING)
    certainty = (
        rise(strength / differences.trace().clamp(min=NOTHING), COMMON, MOST)
        * rise(strength / products.trace().clamp(min=NOTHING), SMALL, LARGE)
        * rise(kinds, FEW_KINDS, MANY_KINDS)
        * (known.sum() >= FEWEST)
    )
    return Difference(positions, along / length, certainty)


def _from_median(values: Float[Tensor, " n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    return values - lower_median(values, known)


def _contrast(
    seen: Float[Tensor, "n n"], known: Bool[Tensor, " n"], excluded: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The matrix that takes each client's neighbours' mean from it; less where there are few.

    Those `excluded` are nobody's neighbours.
    """
    near = (cosines(seen, known, NOTHING) - NEAR).clamp(min=0).fill_diagonal_(0) * ~excluded
    total = near.sum(dim=1)
    eye = torch.eye(len(seen), dtype=seen.dtype, device=seen.device)
    share = total / (total + FEW_NEIGHBOURS)
    return (eye - near / total.clamp(min=TINY)[:, None]) * share[:, None]


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
