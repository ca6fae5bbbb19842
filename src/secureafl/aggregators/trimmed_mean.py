"""Coordinate-wise trimmed mean.

Per coordinate the largest and the smallest values are dropped and the rest averaged.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secureafl.core.shares import require_minority
from secureafl.kernels.order import order_mean
from secureafl.linalg.rows import assumed_malicious
from secureafl.linalg.weighted import weighted_trimmed_mean

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class TrimmedMean:
    """Trimmed mean over the clients present."""

    share: float = 0.2  # dropped at each end, of the clients present; b / n

    def __post_init__(self) -> None:
        require_minority("share", self.share)

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def ranks(self, count: Int[Tensor, ""]) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
        dropped = assumed_malicious(count, self.share)
        return dropped, count - 1 - dropped

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
        count = present.sum()
        share = assumed_malicious(count, self.share) / count.clamp(min=1).double()
        return weighted_trimmed_mean(values, present, samples, share), state
