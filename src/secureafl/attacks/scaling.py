"""Scaling: a backdoor, amplified so that one upload outweighs the honest ones.

`composed_backdoor` has the same gradient as its aim, at the length of honest ones and under a
cover.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor federated learning", AISTATS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from secureafl.attacks.trigger import TriggerAttack
from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


class State(NamedTuple):
    """Fixed for the run."""

    trigger: Float[Tensor, "c side side"]


@dataclass(frozen=True)
class Scaling(TriggerAttack):
    """Trigger, target label, and a factor on the gradient."""

    factor: float = 35.0

    knows = "own"
    recordable = True
    presets = {"stealth": {"factor": 1.0}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.factor > 0, "factor", self.factor, "give a factor above 0")

    def init(self, context: AttackContext) -> State:
        return State(self.draw_trigger(context))

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        return self.factor * arrival.gradient, state
