"""Distances and angles between all pairs of rows, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.linalg.rows import masked
from secureafl.linalg.vectors import exact_norm, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

_BLOCK = 1 << 16  # coordinates turned into float64 at a time, not to double the memory

# Squared distances below this share of the squares they are the difference of are rounding: float32
# rows that far apart (3e-7 of their length) differ in their last digits only.
ROUNDING = 1e-13


def inner_products(
    rows: Float[Tensor, "n d"], origin: Float[Tensor, " d"] | None = None
) -> Float[Tensor, "n n"]:
    """Inner products of all pairs of rows minus `origin`, in float64: squares overflow float32."""
    total = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for start in range(0, rows.shape[1], _BLOCK):
        part = _part(rows, slice(start, start + _BLOCK), origin)
        total = total + part @ part.T
    return (total + total.T) / 2


def products_along(
    rows: Float[Tensor, "n d"],
    vector: Float[Tensor, " d"],
    origin: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, " n"]:
    """Inner product of each row minus `origin` with one vector, in float64."""
    total = rows.new_zeros(len(rows), dtype=torch.float64)
    for start in range(0, rows.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        total = total + _part(rows, block, origin) @ vector[block].double()
    return total


def _part(
    rows: Float[Tensor, "n d"], block: slice, origin: Float[Tensor, " d"] | None
) -> Float[Tensor, "n block"]:
    """Some coordinates of the rows minus `origin`, in float64."""
    # The difference turns them into float64 as it reads them, without a pass of its own.
    return rows[:, block].double() if origin is None else rows[:, block] - origin[block].double()


def squared_distances(
    values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """Distances between rows present; infinite where one is absent, exactly 0 between equal rows.

    A distance is a difference of inner products. Seen from the shortest row, what all rows have in
    common does not drown it, and no row becomes more than twice as long.
    """
    rows = masked(values, present)
    shortest = torch.where(present, exact_norm(rows), torch.inf).argmin()
    apart = squares_apart(inner_products(rows, row(rows, shortest)))
    return torch.where(present[:, None] & present, apart, torch.inf)


def squares_apart(inner: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Squared distances between vectors from their inner products; 0 where they are rounding."""
    squares = inner.diagonal()
    together = squares[:, None] + squares
    apart = together - 2 * inner
    return torch.where(apart > ROUNDING * together, apart, 0)


def cosines(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Cosines of the angles between all pairs of rows; 0 with a row of zeros.

    To 12 digits: the order of a summation must not tell equal angles apart.
    """
    inner = inner_products(rows)
    lengths = inner.diagonal().sqrt()
    along = (inner / lengths[:, None] / lengths).round(decimals=12)
    return torch.where((lengths > 0)[:, None] & (lengths > 0), along, 0)
