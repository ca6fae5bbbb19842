"""Neurotoxin: a backdoor written where honest clients do not write over it.

The upload is zero in the coordinates in which the model moves most. How it moves, a client sees
from the last two models it was given. At first contact, and if the model did not move, its own
gradient tells instead.

Zhang, Panda, Song, Yang, Mahoney, Mittal, Ramchandran, Gonzalez, "Neurotoxin: durable backdoors in
federated learning", ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.trigger import TriggerAttack
from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


class State(NamedTuple):
    """The trigger is fixed for the run; each client remembers a model of its own."""

    trigger: Float[Tensor, "c side side"]
    received: Float[Tensor, "malicious d"]  # the model each was given last
    met: Bool[Tensor, " malicious"]  # whether there was one


@dataclass(frozen=True)
class Neurotoxin(TriggerAttack):
    """Triggered batches; nothing in the coordinates that move most."""

    masked_share: float = 0.05
    factor: float = 3.0

    knows = "own"
    recordable = True
    presets = {"stealth": {"poisoned_share": 0.2, "factor": 1.0}}

    def __post_init__(self) -> None:
        super().__post_init__()
        share, factor = self.masked_share, self.factor
        require(0 <= share < 1, "masked_share", share, "give a share from 0 to below 1")
        require(0 < factor < torch.inf, "factor", factor, "give a factor above 0")

    def init(self, context: AttackContext) -> State:
        size = (context.num_malicious, context.num_parameters)
        received = context.pixel_mean.new_zeros(size)
        met = torch.zeros(context.num_malicious, dtype=torch.bool, device=received.device)
        return State(self.draw_trigger(context), received, met)

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        received, met = state.received[view.attacker_index], state.met[view.attacker_index]
        moved = (arrival.base.to(received.dtype) - received).abs()
        informed = met & moved.any()
        movement = torch.where(informed, moved.to(arrival.gradient.dtype), arrival.gradient.abs())
        count = round(self.masked_share * len(movement))
        # Stable: of equal movements the first coordinates count, on every device.
        largest = movement.sort(descending=True, stable=True).indices[:count]
        received.copy_(arrival.base)
        met.fill_(True)
        return (self.factor * arrival.gradient).index_fill(0, largest, 0), state
