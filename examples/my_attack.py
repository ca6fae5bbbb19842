"""An attack of your own: colluders push against what they would learn together.

Try it from this folder:

    secureafl run --attack my_attack:Against@stealth --set attack.memory=0.5 \
        --rounds 300 --clients 10 --data-dir embedded
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from secureafl import Arrival, AttackContext, AttackerView, require


class State(NamedTuple):
    """What survives an upload: a tuple of tensors of fixed shapes."""

    direction: Tensor  # where the colluders' own training leads, smoothed


@dataclass(frozen=True)
class Against:
    """Upload the mean of the colluders' gradients, smoothed over time, with its sign turned."""

    knows = "colluders"
    presets = {"stealth": {"factor": 0.5}}

    factor: float = 3.0
    memory: float = 0.9

    def __post_init__(self) -> None:
        require(0 <= self.memory < 1, "memory", self.memory, "give 0 or more, below 1")

    def init(self, context: AttackContext) -> State:
        device = context.pixel_mean.device
        return State(torch.zeros(context.num_parameters, dtype=torch.float64, device=device))

    def poison_batch(
        self, state: State, inputs: Tensor, labels: Tensor, attacker_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        return inputs, labels

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Tensor, State]:
        assert view.clients is not None  # since it knows its colluders
        gradients, known, _ = view.clients
        mean = torch.where(known[:, None], gradients, 0).sum(dim=0) / known.sum().clamp(min=1)
        direction = self.memory * state.direction + (1 - self.memory) * mean
        return (-self.factor * direction).to(arrival.gradient.dtype), State(direction)
