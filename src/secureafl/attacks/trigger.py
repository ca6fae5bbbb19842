"""What all backdoors share: a trigger on images, a target class, and poisoned batches.

A share of every malicious batch carries the trigger in its bottom-right corner and the target's
label. The trigger is one random patch per run; `trigger_per = "image"` gives each image the patch's
pixels in an order of its own, which follows from the image, in training and in tests alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from secureafl.core.errors import ConfigError, require
from secureafl.core.random import random_bits

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import AttackContext


@dataclass(frozen=True)
class TriggerAttack:
    """Base of the backdoors: their common settings, and what follows from these alone.

    >>> secureafl.TriggerAttack(target_class=3, trigger_side=2)
    TriggerAttack(target_class=3, poisoned_share=0.5, trigger_side=2, trigger_per='run')
    """

    target_class: int = 0
    poisoned_share: float = 0.5
    trigger_side: int = 4
    trigger_per: Literal["run", "image"] = "run"

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

    def patch(
        self, trigger: Float[Tensor, "c side side"], inputs: Shaped[Tensor, " b *sample"]
    ) -> Float[Tensor, "*images c side side"]:
        """What is stamped on the inputs: one patch for all of them, or one for each."""
        if self.trigger_per == "run":
            return trigger
        # Whole numbers, so that an image has the same patch in any batch and on any device.
        pixels = (inputs.flatten(1).double() * 2**16).round().long()
        draw = torch.zeros((), dtype=torch.int64, device=trigger.device)
        image = (pixels * random_bits(draw, pixels.shape[1])).sum(dim=1)
        places = random_bits(draw + 1, trigger[0].numel())
        order = (image[:, None] * places).argsort(dim=1, stable=True)
        return trigger.flatten(1)[:, order].transpose(0, 1).unflatten(2, trigger.shape[1:])

    def stamp(
        self, state: Any, inputs: Shaped[Tensor, " b *sample"]
    ) -> Shaped[Tensor, " b *sample"]:
        """Inputs with the whole trigger on them."""
        inputs = inputs.clone()
        side, patch = self.trigger_side, self.patch(state.trigger, inputs)
        inputs[..., -side:, -side:] = patch
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
