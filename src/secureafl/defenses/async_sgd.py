"""AsyncSGD: every upload is applied as it comes. No defence; the yardstick.

Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017
(without the compensation, as the SecureAFL paper uses it).
"""

from dataclasses import dataclass

import torch

from secureafl.core.types import Decision


@dataclass(frozen=True)
class AsyncSgd:
    """w <- w - eta g."""

    def init(self, num_clients, weights):
        return ()

    def step(self, state, arrival, server):
        yes = torch.ones((), dtype=torch.bool, device=arrival.gradient.device)
        return Decision(yes, yes, arrival.gradient, {}, ""), state
