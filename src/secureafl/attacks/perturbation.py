"""What Min-Max and Min-Sum share: the honest mean, pushed as far as a bound on distances allows.

All malicious clients send m = mu - gamma * p. The mean mu is that of the gradients the honest
clients trained last; p points along mu (`unit`), along the spread of the honest in each coordinate
(`std`) or along the signs of mu (`sign`). Its length does not matter, since the attack takes the
largest gamma that its bound allows; here it is 1.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from secureafl.core.errors import require
from secureafl.linalg.rows import deviation_of, mean_of
from secureafl.linalg.vectors import choose, exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


@dataclass(frozen=True)
class PerturbedMean(abc.ABC):
    """Base of the two: their settings, and everything but the bound."""

    perturbation: Literal["unit", "std", "sign"] = "unit"
    strength: float = 1.0  # share of the largest gamma that is used

    knows = "everybody"
    recordable = True
    presets = {
        "stealth": {"strength": 0.5},
        "std": {"perturbation": "std"},
        "sign": {"perturbation": "sign"},
    }

    def __post_init__(self) -> None:
        strength = self.strength
        require(0 < strength <= 1, "strength", strength, "give a share above 0, at most 1")

    def init(self, context: AttackContext) -> tuple[()]:
        return ()

    def poison_batch(
        self,
        state: tuple[()],
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        return inputs, labels

    def poison_update(
        self, state: tuple[()], arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        assert view.clients is not None
        honest = view.clients.known & ~view.clients.malicious
        rows = view.clients.gradients  # all of them finite
        mean = mean_of(rows, honest)
        direction = self._direction(rows, honest, mean)
        gamma = torch.where(honest.any(), self.largest(rows, honest, mean, direction), 0)
        crafted = mean - self.strength * gamma * direction
        return choose(honest.any(), crafted.to(rows.dtype), arrival.gradient), state

    def _direction(
        self, rows: Float[Tensor, "n d"], honest: Bool[Tensor, " n"], mean: Float[Tensor, " d"]
    ) -> Float[Tensor, " d"]:
        """The perturbation p at length 1, in float64; zero if there is none."""
        if self.perturbation == "std":
            along = deviation_of(rows, honest, mean)
        else:
            along = (mean.sign() if self.perturbation == "sign" else mean).double()
        length = exact_norm(along)
        return along / torch.where(length > 0, length, 1)

    @abc.abstractmethod
    def largest(
        self,
        rows: Float[Tensor, "n d"],
        honest: Bool[Tensor, " n"],
        mean: Float[Tensor, " d"],
        direction: Float[Tensor, " d"],
    ) -> Float[Tensor, ""]:
        """The largest gamma within the bound; means nothing where nobody is honest."""
