"""Weighted order statistics over the clients, coordinate by coordinate, in plain torch.

A client with weight k stands for k clients with the same values. The compiled passes support no
weights: they would have to carry one along with every swap of two values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

_BLOCK = 1 << 14  # coordinates at a time: their weights and sums are float64


def weighted_median(
    values: Float[Tensor, "n d"], present: Bool[Tensor, " n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " d"]:
    """Weighted median; the mean of two neighbours where each side has exactly half the weight."""

    def middle(ordered: Tensor, mass: Tensor) -> Tensor:
        upto = mass.cumsum(dim=0)
        half = upto[-1] / 2
        places = torch.stack([(upto < half).sum(dim=0), (upto <= half).sum(dim=0)])
        low, high = ordered.gather(0, places.clamp(max=len(ordered) - 1))
        # Halve before adding: two values near the float32 limit must not overflow.
        return low / 2 + high / 2

    return _by_blocks(middle, values, present, weights)


def weighted_trimmed_mean(
    values: Float[Tensor, "n d"],
    present: Bool[Tensor, " n"],
    weights: Float[Tensor, " n"],
    share: Float[Tensor, ""],
) -> Float[Tensor, " d"]:
    """Weighted trimmed mean: a share, below half, of the weight is cut off at each end."""

    def inside(ordered: Tensor, mass: Tensor) -> Tensor:
        upto = mass.cumsum(dim=0)
        low, high = share * upto[-1], (1 - share) * upto[-1]
        kept = (torch.minimum(upto, high) - torch.maximum(upto - mass, low)).clamp(min=0)
        part = (kept / kept.sum(dim=0)).to(ordered.dtype)
        return torch.where(part > 0, ordered * part, 0).sum(dim=0)

    return _by_blocks(inside, values, present, weights)


def _by_blocks(
    rule: Callable[[Tensor, Tensor], Tensor], values: Tensor, present: Tensor, weights: Tensor
) -> Tensor:
    """Apply a rule to ordered values and their weights; 0 where nobody is present."""
    mass, blocks = torch.where(present, weights, 0), []
    for part in values.split(_BLOCK, dim=1):
        ordered = torch.where(present[:, None], part, torch.inf).sort(dim=0)
        blocks.append(rule(ordered.values, mass[ordered.indices]))
    return torch.where(present.any(), torch.cat(blocks), 0)
