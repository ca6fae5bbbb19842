"""Min-Sum: as far from the honest mean as the most remote honest client.

The crafted update m = mu - gamma * p has a sum of squared distances to the honest clients that is
no larger than that of any of these. Around their mean such a sum is n times the squared distance
from the mean plus a constant, so the largest gamma is simply the distance of the honest client
furthest from the mean, whatever the direction.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
for federated learning", NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.attacks.perturbation import PerturbedMean
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class MinSum(PerturbedMean):
    """Bounds the sum of squared distances."""

    def largest(
        self,
        rows: Float[Tensor, "n d"],
        honest: Bool[Tensor, " n"],
        mean: Float[Tensor, " d"],
        direction: Float[Tensor, " d"],
    ) -> Float[Tensor, ""]:
        return torch.where(honest, exact_norm(rows - mean), 0).max()
