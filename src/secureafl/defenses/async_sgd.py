"""AsyncSGD: every upload is applied as it comes. No defence; the yardstick.

Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017
(without the compensation, as the SecureAFL paper uses it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.rules import own_weight
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import exactly_scaled

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class AsyncSgd:
    """w <- w - eta g."""

    weighs = True

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], arrival: Arrival, server: ServerView
    ) -> tuple[Decision, tuple[()]]:
        yes = torch.ones((), dtype=torch.bool, device=arrival.gradient.device)
        direction = arrival.gradient
        if server.samples is not None:
            direction = exactly_scaled(direction, own_weight(server.samples, arrival.client))
        return Decision(yes, yes, direction, {}, ""), state
