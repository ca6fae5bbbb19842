"""Coordinate-wise median.

Each coordinate is the middle value over the clients; with an even count, the mean of the two
middle ones (`torch.median` would give the lower).

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018.
"""

from dataclasses import dataclass

from secureafl.linalg.order import order_mean
from secureafl.linalg.weighted import weighted_median


@dataclass(frozen=True)
class Median:
    """Coordinate-wise median; SecureAFL's default."""

    def init(self, num_clients, weights):
        return ()

    def ranks(self, count):
        return (count - 1) // 2, count // 2

    def aggregate(self, state, values, present):
        return order_mean(values, present, *self.ranks(present.sum())), state

    def aggregate_weighted(self, state, values, present, samples):
        return weighted_median(values, present, samples), state
