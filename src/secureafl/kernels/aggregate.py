"""Estimate all clients, take order statistics over them, and remember how the step lies to them.

One pass over the memory does all three where a fused version is at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secureafl.kernels.fused import fused_order_mean, has_fused
from secureafl.kernels.order import order_mean
from secureafl.kernels.tiles import combine, products

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


def combined_order_mean(
    vectors: Float[Tensor, "tiles n slots width"],
    shares: Float[Tensor, "n slots"],
    model: Float[Tensor, " d"],
    present: Bool[Tensor, " n"],
    first: Int[Tensor, ""],
    last: Int[Tensor, ""],
) -> tuple[Float[Tensor, " d"], Float[Tensor, "n slots"]]:
    """Mean of the first-th to last-th smallest of the combinations present, per coordinate.

    Returns it together with its inner products with every remembered vector.
    """
    if has_fused(vectors):
        return fused_order_mean(vectors, shares, model, present, int(first), int(last))
    return combined_order_mean_reference(vectors, shares, model, present, first, last)


def combined_order_mean_reference(
    vectors: Tensor, shares: Tensor, model: Tensor, present: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """Plain torch, on any device: three passes."""
    direction = order_mean(combine(vectors, shares, model), present, first, last)
    return direction, products(vectors, direction)
