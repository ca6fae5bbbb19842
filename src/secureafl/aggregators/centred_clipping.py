"""Centred clipping: the last aggregate, moved by the mean of clipped differences to it.

Whatever a client sends moves the result by at most the radius over the number of clients. The
centre is remembered from call to call, so honest clients, who pull the same way every time, win
over a bounded disturbance.

Karimireddy, He, Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.linalg.rows import clip_factors, median_of
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class CentredClipping:
    """v <- v + mean of (g_i - v) clipped to the radius; v starts at zero."""

    radius: float = 0.0  # tau; 0: the median distance from the centre, anew each time
    iterations: int = 1

    def __post_init__(self) -> None:
        require(self.radius >= 0, "radius", self.radius, "give 0 (automatic) or a distance")
        require(self.iterations >= 1, "iterations", self.iterations, "give 1 or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return torch.zeros_like(weights)

    def aggregate(
        self, state: Float[Tensor, " d"], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        centre, count = state, present.sum().clamp(min=1)
        for _ in range(self.iterations):
            offsets = torch.where(present[:, None], values - centre, 0)
            lengths = exact_norm(offsets)
            radius = self.radius or median_of(lengths, present)
            centre = centre + (clip_factors(lengths, radius) / count).to(values.dtype) @ offsets
        return centre, centre.clone()  # what becomes of the result must not reach the state
