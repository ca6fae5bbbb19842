"""PGD: a backdoor trained in several steps, none of which leaves a ball around the received model.

The client takes `steps` steps on poisoned batches of its own. After each it projects the model
back into the ball, and in the end it uploads the way it went, as if that were one gradient. The
radius is eta * `radius` * the usual length of its own gradients: it sees no others. The usual
length is an average in which old gradients fade, since gradients shrink in training.

Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019, and Wang et al.,
"Attack of the tails: yes, you really can backdoor federated learning", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.trigger import TriggerAttack
from secureafl.core.errors import require
from secureafl.linalg.vectors import clipped, exact_norm

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView

_FADING = 0.9  # what the usual length keeps of itself at each upload: about ten uploads count


class State(NamedTuple):
    """The trigger is fixed for the run."""

    trigger: Float[Tensor, "c side side"]
    usual: Float[Tensor, " malicious"]  # length of each client's own gradients; -1 before the first


@dataclass(frozen=True)
class Pgd(TriggerAttack):
    """Several projected local steps on triggered batches."""

    steps: int = 10  # K
    radius: float = 5.0  # in usual lengths of the client's own gradients
    factor: float = 1.0  # on the way found, as in the original's variant with replacement

    knows = "own"
    recordable = True
    presets = {"stealth": {"radius": 1.0}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps >= 1, "steps", self.steps, "give 1 or more")
        require(0 < self.radius < torch.inf, "radius", self.radius, "give a radius above 0")
        require(0 < self.factor < torch.inf, "factor", self.factor, "give a factor above 0")

    @property
    def further_batches(self) -> int:
        """One for each step after the first (`core.traits`)."""
        return self.steps - 1

    def init(self, context: AttackContext) -> State:
        device = context.pixel_mean.device
        usual = torch.full((context.num_malicious,), -1, dtype=torch.float64, device=device)
        return State(self.draw_trigger(context), usual)

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        length, before = exact_norm(arrival.gradient), state.usual[view.attacker_index]
        usual = torch.where(before < 0, length, _FADING * before + (1 - _FADING) * length)
        state.usual[view.attacker_index] = usual
        # The way from the received model, divided by -eta: no digits are lost in differences of
        # models that hardly differ.
        way = clipped(arrival.gradient, self.radius * usual)
        for step in range(self.further_batches):
            weights = arrival.base - view.learning_rate * way
            way = clipped(way + view.train(weights, step), self.radius * usual)
        return self.factor * way, state
