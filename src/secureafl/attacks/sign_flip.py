"""Sign flip: upload the negative gradient, times a factor.

Fang, Cao, Jia, Gong, "Local model poisoning attacks to Byzantine-robust federated learning",
USENIX Security 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


@dataclass(frozen=True)
class SignFlip:
    """-factor * g."""

    knows = "own"
    recordable = True
    presets = {"stealth": {"factor": 0.5}, "stated": {"factor": 1.0}}

    factor: float = 1.7

    def __post_init__(self) -> None:
        require(self.factor > 0, "factor", self.factor, "give a factor above 0")

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
        return -self.factor * arrival.gradient, state
