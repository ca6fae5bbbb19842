"""The layout of the vectors stored per client: tile by tile.

A tile holds some coordinates of *all* vectors of *all* clients next to each other, so that one pass
over the memory reads it from front to back, and the values of all clients in one coordinate lie
near each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

WIDTH = 16  # coordinates per tile: a tile row is one cache line, two tiles of 50 clients fit in L1
GRADIENT, BASE = 0, 1  # every client's first two vectors: its last upload, and the model under it
OWN = 2  # index of the first vector that belongs to the estimator


def allocate(num_clients: int, slots: int, like: Tensor) -> Float[Tensor, "tiles n slots width"]:
    """Room for `slots` vectors of the size of `like` per client, all zero."""
    return like.new_zeros(num_tiles(like.numel()), num_clients, slots, WIDTH)


def num_tiles(size: int) -> int:
    """Tiles that hold `size` coordinates, the last one perhaps in part."""
    return -(-size // WIDTH)


def read_client(
    vectors: Float[Tensor, "tiles n slots width"], client: Int[Tensor, ""], size: int
) -> Float[Tensor, "slots d"]:
    """A copy of one client's vectors."""
    mine = vectors.index_select(1, client.view(1)).squeeze(1)
    return mine.transpose(0, 1).reshape(vectors.shape[2], -1)[:, :size]


def as_tiles(rows: Float[Tensor, "rows d"], tiles: int) -> Float[Tensor, "tiles rows width"]:
    """Vectors cut into tiles, the last one filled up with zeros."""
    missing = tiles * WIDTH - rows.shape[1]
    padded = torch.nn.functional.pad(rows, (0, missing))
    return padded.view(len(rows), tiles, WIDTH).transpose(0, 1)


def combine(
    vectors: Float[Tensor, "tiles n slots width"],
    shares: Float[Tensor, "n slots"],
    model: Float[Tensor, " d"],
) -> Float[Tensor, "n d"]:
    """Row k: the sum of client k's vectors times their shares, with w - base in place of base.

    The drift is formed before it is multiplied: two nearly equal products would lose its digits.
    """
    others = shares.clone()
    others[:, BASE] = 0
    rows = torch.einsum("tnsw,ns->ntw", vectors, others).flatten(1)[:, : model.numel()]
    base = vectors[:, :, BASE].transpose(0, 1).flatten(1)[:, : model.numel()]
    return rows + shares[:, BASE : BASE + 1] * (model - base)


def products(
    vectors: Float[Tensor, "tiles n slots width"], vector: Float[Tensor, " d"]
) -> Float[Tensor, "n slots"]:
    """Inner products of one vector with every stored one but the uploads, in float64."""
    tiles = as_tiles(vector[None], len(vectors))[:, 0]
    found = torch.einsum("tnsw,tw->tns", vectors, tiles).sum(dim=0, dtype=torch.float64)
    found[:, GRADIENT] = 0
    return found
