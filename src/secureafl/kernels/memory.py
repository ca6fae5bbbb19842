"""What the server remembers of every client: vectors, and their inner products.

The inner products are kept up to date round by round, so that an estimator chooses the shares of
its combination without touching a vector: those among a client's own vectors change only when it
uploads, those with the model follow from the direction of each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.vectors import set_row
from secureafl.kernels.fused import fused_inner_products, has_fused
from secureafl.kernels.tiles import allocate, inner_products, read_client, write_client

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class Memory(NamedTuple):
    """Row k is client k's."""

    vectors: Float[Tensor, "tiles n slots width"]
    known: Bool[Tensor, " n"]
    gram: Float[Tensor, "n slots slots"]  # inner products of the vectors, float64
    along: Float[Tensor, "n slots"]  # inner products with the current model, float64


def no_memory(num_clients: int, slots: int, weights: Tensor) -> Memory:
    """Nobody has been heard of."""
    device = weights.device
    return Memory(
        allocate(num_clients, slots, weights),
        torch.zeros(num_clients, dtype=torch.bool, device=device),
        torch.zeros(num_clients, slots, slots, dtype=torch.float64, device=device),
        torch.zeros(num_clients, slots, dtype=torch.float64, device=device),
    )


def recall(memory: Memory, client: Int[Tensor, ""], size: int) -> Float[Tensor, "slots d"]:
    """A copy of one client's vectors."""
    return read_client(memory.vectors, client, size)


def remember(
    memory: Memory,
    client: Int[Tensor, ""],
    rows: Float[Tensor, "slots d"],
    weights: Float[Tensor, " d"],
    keep: Bool[Tensor, ""],
) -> Memory:
    """Replace one client's vectors where `keep` holds; `weights` is the current model."""
    write_client(memory.vectors, client, rows, keep)
    fused = has_fused(memory.vectors)
    inner = (fused_inner_products if fused else inner_products)(rows, weights)
    set_row(memory.gram, client, inner[:, :-1], keep)
    set_row(memory.along, client, inner[:, -1], keep)
    set_row(memory.known, client, torch.ones_like(keep), keep)
    return memory


def after_step(
    memory: Memory, along_step: Float[Tensor, "n slots"], stepped: Bool[Tensor, ""]
) -> Memory:
    """The memory once the model has moved; `along_step` are inner products with the movement."""
    return memory._replace(along=memory.along + torch.where(stepped, along_step, 0))
