"""ALIE (a little is enough): move the mean by so little that honest clients lie beyond it.

The upload is mu - z * sigma in each coordinate, with mean and deviation over what the colluders
trained themselves. z is the largest for which, were gradients normal, the attackers and the honest
clients beyond them are a majority: with b of n clients malicious, s = floor(n/2 + 1) - b honest
supporters are needed, and z is the normal quantile of (n - b - s) / (n - b), at least 0.

Baruch, Baruch, Goldberg, "A little is enough: circumventing defenses for distributed learning",
NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.linalg.rows import deviation_of, mean_of
from secureafl.linalg.vectors import choose

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


@dataclass(frozen=True)
class Alie:
    """Mean minus z standard deviations of the colluders' gradients."""

    z: float = 0.0  # 0: from the numbers of clients

    knows = "colluders"
    recordable = True
    # With few attackers z from the numbers is small and harms an undefended server little.
    presets = {"stealth": {"z": 0.1}, "strong": {"z": 1.5}}

    def __post_init__(self) -> None:
        require(0 <= self.z < torch.inf, "z", self.z, "give 0 or more deviations")

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
        colluders = view.clients.known & view.clients.malicious
        rows = view.clients.gradients  # all of them finite
        mean = mean_of(rows, colluders)
        spread = deviation_of(rows, colluders, mean)
        crafted = mean - self._deviations(view.clients.malicious) * spread
        return choose(colluders.any(), crafted.to(rows.dtype), arrival.gradient), state

    def _deviations(self, malicious: Bool[Tensor, " n"]) -> Float[Tensor, ""] | float:
        if self.z:
            return self.z
        honest = (~malicious).sum().double()
        # A majority of attackers needs no supporters; one keeps the quantile finite.
        supporters = (len(malicious) // 2 + 1 - malicious.sum()).clamp(min=1)
        share = (honest - supporters) / honest.clamp(min=1)
        return torch.special.ndtri(share.clamp(min=0.5))  # below one half z would be negative
