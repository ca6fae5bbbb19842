"""No attack: every client is honest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


@dataclass(frozen=True)
class NoAttack:
    """No client is malicious, whatever `malicious` says."""

    knows = "own"
    recordable = True

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
        return arrival.gradient, state
