"""Gaussian: upload noise that has nothing to do with the data.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant
gradient descent", NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise in every coordinate."""

    knows = "own"
    presets = {"stealth": {"std": 0.44}, "stated": {"std": 200.0}}

    std: float = 1.1

    def __post_init__(self) -> None:
        require(self.std > 0, "std", self.std, "give a standard deviation above 0")

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
        noise = torch.empty_like(arrival.gradient).normal_(generator=view.generator)
        return self.std * noise, state
