"""FedAdam: each coordinate's mean step over the root of its mean square.

Coordinates that move little are moved further, so one learning rate suits layers of any scale. The
length of a step no longer says how far the model moves: what remains of a defence's bound is in
docs/optimizers.md.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive federated optimization",
ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.optimizers.adaptive import (
    State,
    begin,
    moved,
    require_adaptivity,
    require_settings,
    update_mean,
)

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Adam:
    """v <- beta2 v + (1 - beta2) step^2; w <- w - learning_rate m / (sqrt(v) + adaptivity)."""

    learning_rate: float = 0.001  # not above adaptivity: no move is longer than the longest step
    beta1: float = 0.9
    beta2: float = 0.99
    adaptivity: float = 1e-3  # tau: the smaller, the more coordinates are evened out

    def __post_init__(self) -> None:
        require_settings(self.learning_rate, beta1=self.beta1, beta2=self.beta2)
        require_adaptivity(self.adaptivity)

    def init(self, weights: Float[Tensor, " d"]) -> State:
        return begin(weights, self.adaptivity)

    def move(self, state: State, step: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], State]:
        square = torch.lerp(step.square(), state.square, self.beta2)
        state = State(update_mean(state, step, self.beta1), square)
        return moved(state, self.learning_rate, self.adaptivity)
