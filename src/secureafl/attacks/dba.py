"""DBA: a backdoor whose trigger is split among the attackers.

Each malicious client stamps one quadrant of the trigger on its own images; clients take turns with
the four quadrants. No client ever shows the whole trigger, which is only stamped at test time.

Xie, Huang, Chen, Li, "DBA: distributed backdoor attacks against federated learning", ICLR 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.trigger import TriggerAttack
from secureafl.core.errors import require
from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


class State(NamedTuple):
    """Fixed for the run."""

    trigger: Float[Tensor, "c side side"]
    parts: Bool[Tensor, "4 side side"]  # pixels of each quadrant


@dataclass(frozen=True)
class Dba(TriggerAttack):
    """Quadrant of the trigger, target label, and a factor on the gradient."""

    factor: float = 35.0

    knows = "own"
    recordable = True
    presets = {"stealth": {"factor": 1.0}}

    def __post_init__(self) -> None:
        super().__post_init__()
        side, factor = self.trigger_side, self.factor
        require(side % 2 == 0, "trigger_side", side, "give an even number, to halve it")
        require(0 < factor < torch.inf, "factor", factor, "give a factor above 0")

    def init(self, context: AttackContext) -> State:
        trigger = self.draw_trigger(context)
        half = torch.arange(self.trigger_side, device=trigger.device) // (self.trigger_side // 2)
        quadrant = 2 * half[:, None] + half
        numbers = torch.arange(4, device=trigger.device)
        return State(trigger, quadrant == numbers[:, None, None])

    def stamp_as(
        self, state: State, inputs: Shaped[Tensor, " b *sample"], attacker_index: Int[Tensor, ""]
    ) -> Shaped[Tensor, " b *sample"]:
        inputs = inputs.clone()
        corner = inputs[..., -self.trigger_side :, -self.trigger_side :]
        part = row(state.parts, attacker_index % 4)
        patch = self.patch(state.trigger, inputs).to(inputs.dtype)
        corner.copy_(torch.where(part, patch, corner))
        return inputs

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        return self.factor * arrival.gradient, state
