"""The server's memory: vectors stored per client, and their inner products.

The inner products are kept up to date round by round, so that an estimator chooses the shares of
its combination without touching a vector: those among a client's own vectors change only when it
uploads, those with the model follow from the direction of each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.kernels.tiles import allocate, products

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class Memory(NamedTuple):
    """Stored vectors and inner products; row k is client k's. Inner products are float64."""

    vectors: Float[Tensor, "tiles n slots width"]
    known: Bool[Tensor, " n"]
    gram: Float[Tensor, "n slots slots"]  # inner products of the vectors (see `core.types.Inner`)
    along: Float[Tensor, "n slots"]  # with the current model
    squared: Float[Tensor, ""]  # the current model with itself


def no_memory(num_clients: int, slots: int, weights: Tensor) -> Memory:
    """The memory before the first upload."""
    exact = {"dtype": torch.float64, "device": weights.device}
    return Memory(
        allocate(num_clients, slots, weights),
        torch.zeros(num_clients, dtype=torch.bool, device=weights.device),
        torch.zeros(num_clients, slots, slots, **exact),
        torch.zeros(num_clients, slots, **exact),
        weights.double() @ weights.double(),
    )


def with_model(memory: Memory, weights: Float[Tensor, " d"]) -> Memory:
    """The inner products with the model computed anew, however it has moved: one more pass."""
    exact = weights.double()
    return memory._replace(along=products(memory.vectors, weights), squared=exact @ exact)


def without_client(memory: Memory, client: Int[Tensor, ""]) -> Memory:
    """Forget a client, in place; the same for all versions of the operations."""
    index = client.view(1)
    memory.vectors.index_fill_(1, index, 0)
    for rows in (memory.known, memory.gram, memory.along):
        rows.index_fill_(0, index, 0)
    return memory
