"""Geometric median: the point with the smallest sum of distances to all clients.

A client pulls with the same force however far away it is, so a minority moves the point a bounded
way. Found by Weiszfeld's iteration, in which each client weighs one over its distance; it starts
from the coordinate-wise median, which no outlier reaches either.

Pillutla, Kakade, Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on
Signal Processing 70, 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.aggregators.median import Median
from secureafl.core.errors import require
from secureafl.linalg.rows import masked, weighted_mean
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class GeometricMedian:
    """Smoothed Weiszfeld iteration from the coordinate-wise median."""

    iterations: int = 8
    smoothing: float = 1e-6  # nu; a client nearer than this weighs no more than at this distance

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations", self.iterations, "give 1 or more")
        smoothing = self.smoothing
        require(0 < smoothing < torch.inf, "smoothing", smoothing, "give a distance above 0")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        centre, _ = Median().aggregate((), values, present)
        return self._drawn_in(centre, values, present, torch.ones_like(present).double()), state

    def aggregate_weighted(
        self,
        state: tuple[()],
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        samples: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        centre, _ = Median().aggregate_weighted((), values, present, samples)
        return self._drawn_in(centre, values, present, samples), state

    def _drawn_in(self, centre: Tensor, values: Tensor, present: Tensor, force: Tensor) -> Tensor:
        rows = masked(values, present)
        for _ in range(self.iterations):
            distances = exact_norm(rows - centre).clamp(min=self.smoothing)
            centre = weighted_mean(rows, torch.where(present, force / distances, 0))
        return centre
