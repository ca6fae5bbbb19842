"""Coordinate-wise median.

Each coordinate is the middle value over the clients; with an even count, the mean of the two
middle ones (`torch.median` would give the lower).

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secureafl.kernels.order import order_mean
from secureafl.linalg.weighted import weighted_median

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Median:
    """Coordinate-wise median; SecureAFL's default."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def ranks(self, count: Int[Tensor, ""]) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
        return (count - 1) // 2, count // 2

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        return order_mean(values, present, *self.ranks(present.sum())), state

    def aggregate_weighted(
        self,
        state: tuple[()],
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        samples: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        return weighted_median(values, present, samples), state
