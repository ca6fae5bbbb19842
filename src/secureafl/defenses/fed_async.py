"""FedAsync: the model is mixed with each client's, the staler the less. Not robust; a yardstick.

The client's model is its base after one step of its own. Mixing pulls the global model back
towards that base, so a stale client costs progress unless its share is cut.

Xie, Koyejo, Gupta, "Asynchronous federated optimization", OPT workshop at NeurIPS 2020
(arXiv:1903.03934).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import exactly_scaled

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class FedAsync:
    """w <- (1 - a) w + a (w_base - eta g), where a = mixing * s(staleness)."""

    mixing: float = 0.6  # alpha
    weighting: Literal["constant", "polynomial", "hinge"] = "polynomial"
    exponent: float = 0.5  # polynomial: (tau + 1) ** -exponent
    hinge_start: int = 4  # hinge: 1 up to here, then 1 / (slope (tau - start) + 1)
    hinge_slope: float = 10.0

    def __post_init__(self) -> None:
        require(0 < self.mixing <= 1, "mixing", self.mixing, "give a share above 0, at most 1")
        for name in ("exponent", "hinge_start", "hinge_slope"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "give 0 or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], arrival: Arrival, server: ServerView
    ) -> tuple[Decision, tuple[()]]:
        share = self.mixing * self._discount(arrival.staleness)
        # As a direction: w - eta * direction is the mixture.
        drift = (server.weights - arrival.base) / server.learning_rate
        direction = exactly_scaled(drift + arrival.gradient, share)
        yes = torch.ones_like(arrival.staleness, dtype=torch.bool)
        return Decision(yes, yes, direction, {"weight": share}, ""), state

    def _discount(self, staleness: Int[Tensor, ""]) -> Float[Tensor, ""]:
        late = staleness.double()
        if self.weighting == "polynomial":
            return (late + 1) ** -self.exponent
        if self.weighting == "hinge":
            return 1 / (self.hinge_slope * (late - self.hinge_start).clamp(min=0) + 1)
        return torch.ones_like(late)
