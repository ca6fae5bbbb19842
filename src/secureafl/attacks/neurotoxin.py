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
    presets = {"stealth": {"poisoned_share": 0.2, "factor": 1.0}}

    def __post_init__(self) -> None:
        super().__post_init__()
        share, factor = self.masked_share, self.factor
        require(0 <= share < 1, "masked_share", share, "give a share from 0 to below 1")
        require(0 < factor < torch.inf, "factor", factor, "give a factor above 0")

    def init(self, scene):
        size = (scene.num_malicious, scene.num_parameters)
        received = scene.pixel_mean.new_zeros(size)
        met = torch.zeros(scene.num_malicious, dtype=torch.bool, device=received.device)
        return State(self.draw_trigger(scene), received, met)

    def poison_update(self, state, trained, seen):
        received, met = state.received[seen.member], state.met[seen.member]
        moved = (trained.base.to(received.dtype) - received).abs()
        informed = met & moved.any()
        movement = torch.where(informed, moved.to(trained.gradient.dtype), trained.gradient.abs())
        count = round(self.masked_share * len(movement))
        # Stable: of equal movements the first coordinates count, on every device.
        largest = movement.sort(descending=True, stable=True).indices[:count]
        received.copy_(trained.base)
        met.fill_(True)
        return (self.factor * trained.gradient).index_fill(0, largest, 0), state
