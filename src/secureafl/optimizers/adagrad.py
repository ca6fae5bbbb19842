"""FedAdagrad: each coordinate's step over the root of the sum of its squares.

The sum only grows, so moves become shorter by themselves: a schedule that no setting has to name.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive federated optimization",
ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
class Adagrad:
    """v <- v + step^2; w <- w - learning_rate m / (sqrt(v) + adaptivity)."""

    learning_rate: float = 0.01
    beta1: float = 0.0  # 0: the last step alone is applied, as in the paper's experiments
    adaptivity: float = 1e-3  # tau

    def __post_init__(self) -> None:
        require_settings(self.learning_rate, beta1=self.beta1)
        require_adaptivity(self.adaptivity)

    def init(self, weights: Float[Tensor, " d"]) -> State:
        return begin(weights, self.adaptivity)

    def move(self, state: State, step: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], State]:
        mean = update_mean(state, step, self.beta1)
        return moved(State(mean, state.square + step.square()), self.learning_rate, self.adaptivity)
