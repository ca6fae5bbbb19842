"""FedBuff: one step with the mean of every K uploads, stale ones discounted. Not robust.

Uploads gather in a buffer, whoever sent them; the full buffer makes one step and is emptied.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered
asynchronous aggregation", AISTATS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.rules import own_weight
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import exactly_scaled

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    mean: Float[Tensor, " d"]  # of the uploads in the buffer, each already divided by K
    count: Int[Tensor, ""]


@dataclass(frozen=True)
class FedBuff:
    """Every K-th arrival: w <- w - eta / K * sum of g / sqrt(1 + tau)."""

    buffer_size: int = 10  # K

    buffering = True
    weighs = True

    def __post_init__(self) -> None:
        require(self.buffer_size >= 1, "buffer_size", self.buffer_size, "give 1 upload or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        count = torch.zeros((), dtype=torch.int64, device=weights.device)
        return State(torch.zeros_like(weights), count)

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        weight = (1.0 + arrival.staleness.double()) ** -0.5
        if server.samples is not None:
            weight = weight * own_weight(server.samples, arrival.client)
        mean = state.mean + exactly_scaled(arrival.gradient, weight / self.buffer_size)
        count = state.count + 1
        ready = count == self.buffer_size
        direction = torch.where(ready, mean, 0)
        kept = State(torch.where(ready, 0, mean), torch.where(ready, 0, count))
        scores = {"weight": weight, "buffered": count}
        return Decision(torch.ones_like(ready), ready, direction, scores, ""), kept
