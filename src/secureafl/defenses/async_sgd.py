"""AsyncSGD: every upload is applied as it comes. No defence; the yardstick.

Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017
(without the compensation, as the SecureAFL paper uses it).
"""

from dataclasses import dataclass

import torch

from secureafl.core.rules import own_weight
from secureafl.core.types import Decision
from secureafl.linalg.vectors import exactly_scaled


@dataclass(frozen=True)
class AsyncSgd:
    """w <- w - eta g."""

    weighs = True

    def init(self, num_clients, weights):
        return ()

    def step(self, state, arrival, server):
        yes = torch.ones((), dtype=torch.bool, device=arrival.gradient.device)
        direction = arrival.gradient
        if server.samples is not None:
            direction = exactly_scaled(direction, own_weight(server.samples, arrival.client))
        return Decision(yes, yes, direction, {}, ""), state
