"""Min-Max: as far from the honest mean as the two honest clients furthest apart would allow.

The crafted update m = mu - gamma * p is nowhere further from an honest one than the two furthest
honest ones are from each other. Its squared distance to each honest client is quadratic in gamma,
so each gives a largest gamma in closed form, and the smallest of these counts. With one honest
client known, m is its gradient.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
for federated learning", NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.attacks.perturbation import PerturbedMean
from secureafl.linalg.pairwise import inner_products, products_along

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class MinMax(PerturbedMean):
    """Bounds the largest distance."""

    def largest(
        self,
        rows: Float[Tensor, "n d"],
        honest: Bool[Tensor, " n"],
        mean: Float[Tensor, " d"],
        direction: Float[Tensor, " d"],
    ) -> Float[Tensor, ""]:
        inner = inner_products(rows, mean)
        squares = inner.diagonal()
        apart = squares[:, None] + squares - 2 * inner
        bound = torch.where(honest[:, None] & honest, apart, 0).max()
        # |g - m|^2 = |g - mu|^2 + 2 gamma p'(g - mu) + gamma^2, to be at most the bound. The mean
        # is within it, so what is left is below 0 by rounding only.
        along = products_along(rows, direction, mean)
        left = (bound - squares).clamp(min=0)
        roots = (along.square() + left).sqrt() - along
        return torch.where(honest, roots, torch.inf).min()
