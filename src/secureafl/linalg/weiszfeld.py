"""Distances from the geometric median of vectors, from inner products alone.

The point that Weiszfeld's iteration is at is always a mean of the vectors, so the shares they have
in it say where it is, and no vector is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.linalg.pairwise import ROUNDING, squares_apart

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

ITERATIONS, SMOOTHING = 8, 1e-6


def distances_from_median(
    products: Float[Tensor, "n n"],
    weights: Float[Tensor, " n"],
    iterations: int = ITERATIONS,
    smoothing: float = SMOOTHING,
) -> Float[Tensor, " n"]:
    """Distance of each vector from the weighted geometric median of all, in float64.

    The iteration starts at a mean in which a vector weighs one over its median distance to all:
    the farther a minority is away, the less it weighs. A vector nearer than the smoothing weighs no
    more than at that distance. One without weight may be anything finite.

    >>> from secureafl.linalg.weiszfeld import distances_from_median
    >>> numbers = torch.tensor([1.0, 2.0, 3.0, 4.0, 1e9]).double()
    >>> distances_from_median(torch.outer(numbers, numbers), torch.ones(5).double(), iterations=50)
    tensor([2.0000e+00, 1.0000e+00, 0.0000e+00, 1.0000e+00, 1.0000e+09],
           dtype=torch.float64)
    """
    squares = products.diagonal()
    pull = weights / _median_distances(products, weights).clamp(min=smoothing)
    least = (ROUNDING * squares).clamp(min=smoothing**2)
    for _ in range(iterations):
        pull = weights / torch.maximum(_squares_from(products, pull), least).sqrt()
    found = _squares_from(products, pull)
    return torch.where(found > ROUNDING * squares, found, 0).sqrt()


def _squares_from(
    products: Float[Tensor, "n n"], shares: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Squared distances of the vectors from a mean of them."""
    shares = shares / shares.sum()
    along = products @ shares
    return products.diagonal() - 2 * along + shares @ along


def _median_distances(
    products: Float[Tensor, "n n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Weighted median, the lower one, of each vector's distances from all."""
    ordered, places = squares_apart(products).sort(dim=1)
    upto = weights[places].cumsum(dim=1)
    middle = (2 * upto < weights.sum()).sum(dim=1, keepdim=True).clamp(max=len(weights) - 1)
    return ordered.gather(1, middle).squeeze(1).sqrt()
