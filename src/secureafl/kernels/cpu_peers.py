"""Trust from peers (`core.peers`) on a CPU, in NumPy.

Of a few dozen clients plain torch spends most of the time on starting its many short operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from secureafl.core import peers
from secureafl.kernels.cpu_arrays import cosines, diagonal, lower_median, rise
from secureafl.kernels.cpu_neighbours import neighbour_weights
from secureafl.linalg.rows import TINY

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


_ONE_THREAD = 64  # rows of a matrix that NumPy surely inverts on one thread


def peer_weights(
    history: Tensor, members: Tensor, known: Tensor, due: Tensor, trust: Tensor | None = None
) -> Tensor:
    """See `kernels.reference.peer_weights`."""
    who, weights = members.numpy(), np.zeros(len(members))
    chosen = known.numpy()[who]
    if chosen.any():
        # Squares of large float32 overflow; of few rows the product is five times as fast besides.
        rows = history.index_select(0, torch.from_numpy(who[chosen])).double()
        so_far = None if trust is None else trust.numpy()[who[chosen]]
        weights[chosen] = weights_of_known((rows @ rows.T).numpy(), len(who), so_far)
    return torch.from_numpy(weights)


def weights_of_known(
    gram: Float[np.ndarray, "n n"], members: int, trust: Float[np.ndarray, " n"] | None
) -> Float[np.ndarray, " n"]:
    """See `core.neighbours.trust_weights`; of the known ones of so many members, at least one."""
    lengths = np.sqrt(np.maximum(np.diagonal(gram), 0))
    products = _scaled(gram, lengths)
    weights = _novelty_weights(products) * _group_weights(gram, lengths)
    if members < peers.FEWEST:
        weights = weights * _length_weights(lengths)
    return weights if trust is None else weights * neighbour_weights(products, trust)


def _scaled(
    gram: Float[np.ndarray, "n n"], lengths: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    """See `core.peers.scaled`."""
    scale = 1 / np.maximum(np.maximum(lengths / peers.LONGEST, lower_median(lengths)), TINY)
    return gram * scale[:, None] * scale


def _novelty_weights(products: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """See `core.peers.novelty_weights`; of inner products that are scaled already."""
    novelty = 1 / np.diagonal(_inverse(products, peers.NOVELTY_RIDGE)) - peers.NOVELTY_RIDGE
    usual = max(peers.USUAL_NOVELTY * lower_median(novelty), peers.NOVELTY_RIDGE)
    return usual / np.maximum(novelty, usual)


def _length_weights(lengths: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """See `core.peers.length_weights`."""
    if len(lengths) <= 2:
        return np.ones(len(lengths))
    usual = max(peers.USUAL_LENGTH * lower_median(lengths), TINY)
    return (usual / np.maximum(lengths, usual)) ** 2


def _group_weights(
    gram: Float[np.ndarray, "n n"], lengths: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """See `core.peers.group_weights`."""
    confirmed, clients = _confirmed(cosines(gram, TINY)), len(gram)
    lengths = lengths / max(lower_median(lengths), TINY)
    voice = np.sqrt(np.minimum(np.maximum(lengths, 1 / peers.LONGEST), peers.LONGEST))
    alike = weights = np.ones(clients)
    voices, of_one_mind = np.array([alike, voice, alike]), None
    for _ in range(peers.CENTRINGS):
        centre = weights / max(weights.sum(), TINY)
        along = (confirmed * centre).sum(axis=1)
        seen = confirmed - along[:, None] - along + (centre * along).sum()
        agreement = cosines(seen, peers.NOTHING)
        if of_one_mind is None:
            of_one_mind = 2 * (agreement > peers.MAJORITY).sum(axis=1) >= clients
        whitened = cosines(_whitened(seen), peers.NOTHING)
        *blocks, group = _group_sizes(np.array([agreement, agreement, whitened]), voices)
        block = np.maximum(*blocks)
        by_block = (1 - peers.LEAST_OF_BLOCK) * rise(block, peers.LARGE_BLOCK, peers.LARGEST_BLOCK)
        by_group = rise(group, peers.LARGE_GROUP, peers.LARGEST_GROUP)
        weights = np.where(of_one_mind, 1, 1 - np.maximum(by_block, by_group))
        if (weights == 1).all():  # then the centre stays where it was
            break
    return weights


def _confirmed(directions: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    inverted = _inverse(directions, peers.CONFIRMATION_RIDGE)
    guesses = -inverted / np.diagonal(inverted)[:, None]
    np.fill_diagonal(guesses, 0)
    return cosines(guesses @ directions @ guesses.T, peers.NOTHING)


def _whitened(products: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    ridge = peers.WHITENING_RIDGE
    return diagonal(len(products), 1.0) - ridge * _inverse(products, ridge)


def _group_sizes(
    agreement: Float[np.ndarray, "k n n"], voices: Float[np.ndarray, "k n"]
) -> Float[np.ndarray, "k n"]:
    """The sizes for several agreements, each with voices of its own, at once."""
    roots, voice = np.sqrt(np.maximum(agreement - peers.AGREEMENT, 0)), voices[:, None]
    pairs = ((roots * voice) @ roots * roots * voice).sum(axis=2)
    sizes = voices + np.sqrt(np.maximum(pairs, 0))
    middle = (sizes.shape[1] - 1) // 2
    return sizes / np.partition(sizes, middle)[:, middle, None]


def _inverse(matrix: Float[np.ndarray, "n n"], ridge: float) -> Float[np.ndarray, "n n"]:
    matrix = matrix + diagonal(len(matrix), ridge)
    if len(matrix) <= _ONE_THREAD:
        return np.linalg.inv(matrix)
    # With NumPy the bits of larger ones would depend on threads that no setting of ours controls.
    return torch.linalg.inv(torch.from_numpy(matrix)).numpy()
