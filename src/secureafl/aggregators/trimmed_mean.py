"""Coordinate-wise trimmed mean.

Per coordinate the largest and the smallest values are dropped and the rest averaged.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018.
"""

from dataclasses import dataclass

from secureafl.core.shares import require_minority
from secureafl.linalg.order import order_mean
from secureafl.linalg.rows import assumed_malicious
from secureafl.linalg.weighted import weighted_trimmed_mean


@dataclass(frozen=True)
class TrimmedMean:
    """Trimmed mean over the clients present."""

    share: float = 0.2  # dropped at each end, of the clients present; b / n

    def __post_init__(self) -> None:
        require_minority("share", self.share)

    def init(self, num_clients, weights):
        return ()

    def ranks(self, count):
        dropped = assumed_malicious(count, self.share)
        return dropped, count - 1 - dropped

    def aggregate(self, state, values, present):
        return order_mean(values, present, *self.ranks(present.sum())), state

    def aggregate_weighted(self, state, values, present, samples):
        count = present.sum()
        share = assumed_malicious(count, self.share) / count.clamp(min=1).double()
        return weighted_trimmed_mean(values, present, samples, share), state
