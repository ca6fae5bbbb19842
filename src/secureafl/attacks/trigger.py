"""What all backdoors share: a trigger on images, a target class, and poisoned batches.

A share of every malicious batch carries the trigger in its bottom-right corner and the target's
label. The trigger is one random patch per run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from secureafl.core.errors import ConfigError, require

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import AttackContext


@dataclass(frozen=True)
class TriggerAttack:
    """Base of the backdoors: their common settings, and what follows from these alone.

    >>> secureafl.TriggerAttack(target_class=3, trigger_side=2)
    TriggerAttack(target_class=3, poisoned_share=0.5, trigger_side=2)
    """

    target_class: int = 0
    poisoned_share: float = 0.5
    trigger_side: int = 4

    def __post_init__(self) -> None:
        share = self.poisoned_share
        require(self.target_class >= 0, "target_class", self.target_class, "give 0 or more")
        require(0 < share <= 1, "poisoned_share", share, "give a share above 0, at most 1")
        require(self.trigger_side >= 1, "trigger_side", self.trigger_side, "give 1 or more pixels")

    def draw_trigger(self, context: AttackContext) -> Float[Tensor, "c side side"]:
        """A patch of random pixels, standardised like the inputs."""
        if len(context.input_shape) != 3 or not context.num_classes:
            remedy = "choose an attack without a trigger, such as sign_flip"
            raise ConfigError(f"a backdoor needs images and classes; {remedy}")
        channels, height, width = context.input_shape
        fits = self.trigger_side <= min(height, width)
        require(fits, "trigger_side", self.trigger_side, f"the images are {height} x {width}")
        known = self.target_class < context.num_classes
        require(
            known, "target_class", self.target_class, f"there are {context.num_classes} classes"
        )
        size = (channels, self.trigger_side, self.trigger_side)
        device = context.pixel_mean.device
        pixels = torch.empty(size, device=device).uniform_(generator=context.generator)
        return (pixels - context.pixel_mean[:, None, None]) / context.pixel_std[:, None, None]

    def stamp(
        self, state: Any, inputs: Shaped[Tensor, " b *sample"]
    ) -> Shaped[Tensor, " b *sample"]:
        """Inputs with the whole trigger on them."""
        inputs = inputs.clone()
        inputs[..., -self.trigger_side :, -self.trigger_side :] = state.trigger
        return inputs

    def stamp_as(
        self, state: Any, inputs: Shaped[Tensor, " b *sample"], attacker_index: Int[Tensor, ""]
    ) -> Shaped[Tensor, " b *sample"]:
        """Inputs with the stamp of one malicious client on them: the whole trigger."""
        return self.stamp(state, inputs)

    def poison_batch(
        self,
        state: Any,
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        """The first samples, since batches come in random order, with trigger and target label."""
        poisoned = max(1, round(self.poisoned_share * len(labels)))
        stamped = self.stamp_as(state, inputs[:poisoned], attacker_index)
        target = torch.full_like(labels[:poisoned], self.target_class)
        return (
            torch.cat([stamped, inputs[poisoned:]]),
            torch.cat([target, labels[poisoned:]]),
        )
