"""FLAME: keep the majority that points the same way, clip to the median length, add a little noise.

Clients are clustered by the angles between their updates. The clustering wants more than half of
them in a cluster, so there is one at most: the first that holds a majority as wider angles are
allowed. Clipping bounds what a hidden attacker gains by length, noise blurs what is left of a
backdoor.

Nguyen et al., "FLAME: taming backdoors in federated learning", USENIX Security 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.core.random import random_normal
from secureafl.linalg.linkage import closest_majority
from secureafl.linalg.pairwise import cosines
from secureafl.linalg.rows import clip_factors, masked, median_of
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Flame:
    """Noisy mean of the clipped updates of the majority; remembers how often it drew."""

    noise: float = 0.001  # lambda; standard deviation per coordinate, in median lengths

    def __post_init__(self) -> None:
        require(0 <= self.noise < torch.inf, "noise", self.noise, "give 0 (none) or a factor")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Int[Tensor, ""]:
        return torch.zeros((), dtype=torch.int64, device=weights.device)

    def aggregate(
        self, state: Int[Tensor, ""], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Int[Tensor, ""]]:
        rows = masked(values, present)
        admitted = closest_majority(1 - cosines(rows), present)
        lengths = exact_norm(rows)
        typical = median_of(lengths, present)
        shares = clip_factors(lengths, typical) / admitted.sum().clamp(min=1)
        mean = torch.where(admitted, shares, 0).to(rows.dtype) @ rows
        noise = self.noise * typical * random_normal(state, rows.shape[1])
        return mean + noise.to(rows.dtype), state + 1
