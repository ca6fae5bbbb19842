"""A silent client would send the mean of its last uploads.

With small batches this is the closest guess of the three: it averages the sampling noise away,
which curvature from the same noisy uploads cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.vectors import row, set_row

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Recent(NamedTuple):
    """The last uploads of each client, in a ring."""

    gradients: Float[Tensor, "n length d"]
    count: Int[Tensor, " n"]  # uploads ever remembered


@dataclass(frozen=True)
class HistoryMean:
    """Mean of each client's last uploads."""

    length: int = 5

    def __post_init__(self) -> None:
        require(self.length >= 1, "length", self.length, "give 1 or more uploads")

    def init(self, num_clients, weights):
        gradients = weights.new_zeros(num_clients, self.length, weights.numel())
        count = torch.zeros(num_clients, dtype=torch.int64, device=weights.device)
        return Recent(gradients, count)

    def remember(self, memory, before, arrival, keep):
        count = row(memory.count, arrival.client)
        slots = memory.gradients.flatten(0, 1)  # a view: rows client * length + slot
        slot = arrival.client * self.length + count % self.length
        set_row(slots, slot, arrival.gradient, keep)
        set_row(memory.count, arrival.client, count + 1, keep)
        return memory

    def estimate(self, memory, uploads, weights):
        filled = memory.count.clamp(min=1, max=self.length)
        return memory.gradients.sum(dim=1) / filled[:, None]
