"""Scaling: a backdoor, amplified.

A share of every malicious batch carries a trigger in its bottom-right corner and the target's
label; the gradient is multiplied so that one upload outweighs the honest ones. The trigger is one
random patch per run.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor federated learning", AISTATS 2020.
Knows its own data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import ConfigError, require

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class State(NamedTuple):
    """Fixed for the run."""

    trigger: Float[Tensor, "c side side"]  # standardised like the inputs


@dataclass(frozen=True)
class Scaling:
    """Trigger, target label, and a factor on the gradient."""

    target_class: int = 0
    poisoned_share: float = 0.5
    factor: float = 25.0
    trigger_side: int = 4

    def __post_init__(self) -> None:
        share = self.poisoned_share
        require(self.target_class >= 0, "target_class", self.target_class, "give 0 or more")
        require(0 < share <= 1, "poisoned_share", share, "give a share above 0, at most 1")
        require(self.factor > 0, "factor", self.factor, "give a factor above 0")
        require(self.trigger_side >= 1, "trigger_side", self.trigger_side, "give 1 or more pixels")

    def init(self, scene):
        if len(scene.input_shape) != 3:
            raise ConfigError("attack 'scaling' stamps images; this task's inputs are none")
        channels, height, width = scene.input_shape
        fits = self.trigger_side <= min(height, width)
        require(fits, "trigger_side", self.trigger_side, f"the images are {height} x {width}")
        known = self.target_class < scene.num_classes
        require(known, "target_class", self.target_class, f"there are {scene.num_classes} classes")
        size = (channels, self.trigger_side, self.trigger_side)
        device = scene.pixel_mean.device
        pixels = torch.empty(size, device=device).uniform_(generator=scene.generator)
        return State((pixels - scene.pixel_mean[:, None, None]) / scene.pixel_std[:, None, None])

    def stamp(self, state, inputs):
        inputs = inputs.clone()
        inputs[..., -self.trigger_side :, -self.trigger_side :] = state.trigger
        return inputs

    def poison_batch(self, state, inputs, labels):
        # Batches come in random order, so the first samples are as good as any.
        poisoned = max(1, round(self.poisoned_share * len(labels)))
        inputs = torch.cat([self.stamp(state, inputs[:poisoned]), inputs[poisoned:]])
        target = torch.full_like(labels[:poisoned], self.target_class)
        return inputs, torch.cat([target, labels[poisoned:]])

    def poison_update(self, state, trained, seen):
        return self.factor * trained.gradient, state
