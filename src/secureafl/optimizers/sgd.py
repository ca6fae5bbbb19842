"""SGD, with momentum if asked: FedAvgM. With its defaults the model moves as the defence asks.

A rate below 1 takes back what asynchrony adds: n clients that train at the same time each move the
model by all that they learnt, where a synchronous round would move it by their mean.

Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", arXiv:1909.06335, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.optimizers.adaptive import require_settings

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Sgd:
    """m <- momentum m + step; w <- w - learning_rate m."""

    learning_rate: float = 1.0
    momentum: float = 0.0  # 0: none

    def __post_init__(self) -> None:
        require_settings(self.learning_rate, momentum=self.momentum)

    def init(self, weights: Float[Tensor, " d"]) -> Float[Tensor, " d"] | tuple[()]:
        return torch.zeros_like(weights) if self.momentum else ()

    def move(
        self, state: Float[Tensor, " d"] | tuple[()], step: Float[Tensor, " d"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"] | tuple[()]]:
        if isinstance(state, tuple):
            return self.learning_rate * step, state
        momentum = torch.add(step, state, alpha=self.momentum)
        return self.learning_rate * momentum, momentum
