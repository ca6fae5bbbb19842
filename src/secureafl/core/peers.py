"""Trust from what clients have in common, computed from inner products of their update histories.

Two questions are asked about each client. Can the others' histories explain its own? What nobody
else sends is *novel*: a direction that a malicious client made up to look like nobody. And how many
clients are behind what it sends? Malicious clients that do harm must add up to something, so they
are a *group*: more clients than usual that agree, seen in what others confirm of their histories.

Both are compared with the median client, so that no number of attackers is assumed; a typical
client has weight 1, and nobody gains.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from secureafl.core.trust import TINY, centred, cosines, lower_median

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# Ridges are in units of one client's squared length: with a larger one, more clients are needed to
# explain something.
NOVELTY_RIDGE, CONFIRMATION_RIDGE, WHITENING_RIDGE = 0.1, 1.0, 0.3
USUAL_NOVELTY = 4.0  # in medians; a client that is more novel loses weight in proportion
LONGEST = 2.0  # of a history, in medians: longer ones are looked at as if they were this long
# Sizes of a client's group in medians: the weight falls as the square of the size, and beyond the
# first of these numbers faster, to 0 at the second.
LARGE_GROUP, LARGEST_GROUP = 1.35, 1.65
CENTRINGS = 2  # the centre depends on the weights, and the weights on the centre


def novelty_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from the share of each history that the others' do not explain; 0 for the unknown.

    The part of a client that is left by a ridge regression on all others is one over the diagonal
    of the inverse of their regularised inner products, less the ridge.
    """
    length = gram.diagonal().clamp(min=0).sqrt()
    unit = lower_median(length, known)
    scale = 1 / torch.maximum(length / LONGEST, unit).clamp(min=TINY)
    products = gram * scale[:, None] * scale * known[:, None] * known
    novelty = 1 / inverse(products, NOVELTY_RIDGE).diagonal() - NOVELTY_RIDGE
    # Where everybody is explained well, a little more than the median is nothing yet.
    usual = (USUAL_NOVELTY * lower_median(novelty, known)).clamp(min=NOVELTY_RIDGE)
    return torch.where(known, usual / torch.maximum(novelty, usual), 0)


def group_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from the size of the group of clients that agree with each; 0 for the unknown."""
    confirmed = _confirmed(cosines(gram, known), known)
    weights = known.to(gram.dtype)
    for _ in range(CENTRINGS):
        whitened = _whitened(confirmed, weights / weights.sum().clamp(min=TINY), known)
        size = 1 + whitened.clamp(min=0).sum(dim=1).clamp(min=1)
        size = size / lower_median(size, known)
        slope = (LARGEST_GROUP - size) / (LARGEST_GROUP - LARGE_GROUP)
        weights = size.clamp(min=1) ** -2 * slope.clamp(min=0, max=1)
        weights = torch.where(known, weights, 0)
    return weights


def _confirmed(directions: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Cosines between the best guesses of each direction from all others (ridge regression)."""
    inverted = inverse(directions, CONFIRMATION_RIDGE)
    guesses = -inverted / inverted.diagonal()[:, None]
    guesses = guesses - torch.diag(guesses.diagonal())
    return cosines(guesses @ directions @ guesses.T, known)


def _whitened(
    directions: Float[Tensor, "n n"], centre: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """Cosines seen from the weighted mean, where every direction that is sent counts alike.

    Otherwise clients with similar classes would be one large group.
    """
    products = centred(directions, centre) * known[:, None] * known
    projection = products @ inverse(products, WHITENING_RIDGE)
    return cosines((projection + projection.T) / 2, known)


def inverse(matrix: Float[Tensor, "n n"], ridge: float) -> Float[Tensor, "n n"]:
    """(matrix + ridge I)^-1 of a matrix without negative eigenvalues.

    On a GPU by Newton's iteration: a factorisation there looks at numbers on the host.

    >>> from secureafl.core.peers import inverse
    >>> inverse(torch.ones(1, 1, dtype=torch.float64), ridge=1.0)
    tensor([[0.5000]], dtype=torch.float64)
    """
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    matrix = matrix + ridge * eye
    return (
        torch.linalg.inv(matrix) if matrix.device.type == "cpu" else newton_inverse(matrix, ridge)
    )


def newton_inverse(matrix: Float[Tensor, "n n"], smallest: float) -> Float[Tensor, "n n"]:
    """The inverse of a matrix whose eigenvalues are `smallest` or more, by Newton's iteration.

    From some point on it doubles the correct digits each time. Rows are vectors no longer than
    `LONGEST`, which bounds the largest eigenvalue and so the number of iterations.
    """
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    found = eye / matrix.abs().sum(dim=1).amax()
    for _ in range(math.ceil(math.log2(1 + LONGEST**2 * len(matrix) / smallest)) + 6):
        found = found @ (2 * eye - matrix @ found)
    return found
