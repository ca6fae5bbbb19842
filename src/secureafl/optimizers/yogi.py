"""FedYogi: as FedAdam, but a mean square changes by the size of the last step's alone.

Where steps become small for a while, Adam forgets the large ones before and moves too far; Yogi
lets go of them at the pace of the small ones.

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
class Yogi:
    """v <- v - (1 - beta2) step^2 sign(v - step^2); w <- w - learning_rate m / (sqrt(v) + tau)."""

    learning_rate: float = 0.001  # not above adaptivity: no move is longer than the longest step
    beta1: float = 0.9
    beta2: float = 0.99
    adaptivity: float = 1e-3  # tau

    def __post_init__(self) -> None:
        require_settings(self.learning_rate, beta1=self.beta1, beta2=self.beta2)
        require_adaptivity(self.adaptivity)

    def init(self, weights: Float[Tensor, " d"]) -> State:
        return begin(weights, self.adaptivity)

    def move(self, state: State, step: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], State]:
        new = step.square()
        square = state.square - (1 - self.beta2) * new * (state.square - new).sign()
        state = State(update_mean(state, step, self.beta1), square)
        return moved(state, self.learning_rate, self.adaptivity)
