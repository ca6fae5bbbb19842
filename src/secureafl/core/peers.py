"""Trust from what clients have in common, computed from inner products of their update histories.

Two questions are asked about each client. Can the others' histories explain its own? What nobody
else sends is *novel*: a direction that a malicious client made up to look like nobody. And how much
is behind what it sends? Malicious clients that do harm must add up to something, so they are a
*group*: more clients than usual that agree, or clients that send more than usual in one direction,
seen in what others confirm of their histories. Of few clients one or two are no group; there it
counts how long a history is, which repetition makes it.

All are compared with the median client, so that no number of attackers is assumed; a typical
client has weight 1, and nobody gains.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from secureafl.linalg.rows import TINY, lower_median, rise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# Ridges are in units of one client's squared length: with a larger one, more clients are needed to
# explain something.
NOVELTY_RIDGE, CONFIRMATION_RIDGE, WHITENING_RIDGE = 0.1, 1.0, 0.3
USUAL_NOVELTY = 4.0  # in medians; a client that is more novel loses weight in proportion
LONGEST = 2.0  # of a history, in medians: longer ones are looked at as if they were this long
AGREEMENT = 0.1  # cosines below mean nothing: among few thousand numbers they come by chance
# Sizes of groups are in medians. From the first of two numbers on a client's weight falls, at the
# second it is as low as it gets: for a block, which may be a natural one, not below this.
LARGE_BLOCK, LARGEST_BLOCK, LEAST_OF_BLOCK = 1.35, 1.65, 0.6
LARGE_GROUP, LARGEST_GROUP = 1.5, 1.75
MAJORITY = 0.5  # the cosine at which clients are of one mind: at least half of all are no attackers
FEWEST = 20  # clients: among fewer, chance makes groups and camps, and lengths have to tell
USUAL_LENGTH = 1.5  # of a history among few clients, in medians; a longer one costs weight
CENTRINGS = 2  # the centre depends on the weights, and the weights on the centre
NOTHING = 1e-9  # a squared length below which a direction means nothing


def peer_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from both questions and, of few clients, from lengths; 0 for the unknown.

    >>> from secureafl.core.peers import peer_weights
    >>> peer_weights(torch.eye(3, dtype=torch.float64), torch.tensor([True, True, False]))
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    weights = novelty_weights(gram, known) * group_weights(gram, known)
    return weights * length_weights(gram, known) if len(known) < FEWEST else weights


def lengths_of(gram: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """How long the histories are; squares are negative by rounding only."""
    return gram.diagonal().clamp(min=0).sqrt()


def length_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from how long histories are; 0 for the unknown.

    Most of an honest upload is noise of its batch, which averages away. The history of a client
    that says the same time after time stays long, and moves the model so much further. By the
    square, so that who repeats itself more moves the model less. Of two clients nothing tells which
    is usual.
    """
    length = lengths_of(gram)
    usual = (USUAL_LENGTH * lower_median(length, known)).clamp(min=TINY)
    weights = torch.where(known.sum() > 2, (usual / torch.maximum(length, usual)) ** 2, 1)
    return torch.where(known, weights, 0)


def novelty_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from the share of each history that the others' do not explain; 0 for the unknown.

    The part of a client that is left by a ridge regression on all others is one over the diagonal
    of the inverse of their regularised inner products, less the ridge.
    """
    products = scaled(gram, known)
    novelty = 1 / inverse(products, NOVELTY_RIDGE).diagonal() - NOVELTY_RIDGE
    # Where everybody is explained well, a little more than the median is nothing yet.
    usual = (USUAL_NOVELTY * lower_median(novelty, known)).clamp(min=NOVELTY_RIDGE)
    return torch.where(known, usual / torch.maximum(novelty, usual), 0)


def scaled(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Inner products in units of the median client's squared length; 0 for the unknown.

    Longer clients are taken for no longer than `LONGEST`.
    """
    length = lengths_of(gram)
    unit = lower_median(length, known)
    scale = 1 / torch.maximum(length / LONGEST, unit).clamp(min=TINY)
    return gram * scale[:, None] * scale * known[:, None] * known


def group_weights(gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights from the size of the group of clients that agree with each; 0 for the unknown.

    A *block* is who agrees with a client at all, its members counted alike or by the lengths of
    their histories, whichever makes it larger. Blocks can be natural: clients with animals among
    clients with vehicles. So they cost a part of the weight. Where all directions that are sent are
    made equally strong (whitened), natural blocks fall apart and those with a common aim do not. A
    group that is large in this sense costs all of it. Who is of one mind with half of all clients
    loses nothing: malicious clients are fewer.
    """
    confirmed = _confirmed(cosines(gram, known), known)
    length = lengths_of(gram)
    length = length / lower_median(length, known).clamp(min=TINY)
    voice = length.clamp(min=1 / LONGEST, max=LONGEST).sqrt()
    alike = torch.ones_like(voice)
    weights, of_one_mind = known.to(gram.dtype), torch.zeros_like(known)
    for turn in range(CENTRINGS):
        centre = weights / weights.sum().clamp(min=TINY)
        seen = centred(confirmed, centre) * known[:, None] * known
        agreement = cosines(seen, known, NOTHING)
        block = torch.maximum(
            _group_sizes(agreement, alike, known), _group_sizes(agreement, voice, known)
        )
        group = _group_sizes(cosines(_whitened(seen), known, NOTHING), alike, known)
        weights = torch.minimum(
            1 - (1 - LEAST_OF_BLOCK) * rise(block, LARGE_BLOCK, LARGEST_BLOCK),
            1 - rise(group, LARGE_GROUP, LARGEST_GROUP),
        )
        if turn == 0:  # while nobody has lost weight: who does must not gain a majority by it
            of_one_mind = 2 * (agreement > MAJORITY).sum(dim=1) >= known.sum()
        weights = torch.where(known, torch.where(of_one_mind, 1, weights), 0)
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


def _confirmed(directions: Float[Tensor, "n n"], known: Bool[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Cosines between the best guesses of each direction from all others (ridge regression)."""
    inverted = inverse(directions, CONFIRMATION_RIDGE)
    guesses = -inverted / inverted.diagonal()[:, None]
    guesses = guesses - torch.diag(guesses.diagonal())
    return cosines(guesses @ directions @ guesses.T, known, NOTHING)


def _whitened(products: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Inner products after every direction that is sent was made about equally strong."""
    eye = torch.eye(len(products), dtype=products.dtype, device=products.device)
    return eye - WHITENING_RIDGE * inverse(products, WHITENING_RIDGE)


def _group_sizes(
    agreement: Float[Tensor, "n n"], voice: Float[Tensor, " n"], known: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """How large a group each client is in, in medians, where members count by their voices.

    Pairs are counted that agree with the client and with each other: clients who share an aim
    behind different covers agree only a little, but all with all. The root of their number is a
    number of clients. Everybody is one more: among few clients, where one that happens to agree is
    much, sizes then differ less.
    """
    root = (agreement - AGREEMENT).clamp(min=0).sqrt()
    pairs = ((root * voice) @ root * root) @ voice
    size = voice + pairs.clamp(min=0).sqrt()
    return size / lower_median(size, known)


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
