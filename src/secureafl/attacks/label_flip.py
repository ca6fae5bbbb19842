"""Label flip: train on wrong labels. Label y of z classes becomes z - 1 - y.

Where labels are numbers, as in a regression, y becomes -y. `composed` has the same gradient as
its aim `label`, at the length of honest gradients and under a cover.

Tolpegin, Truex, Gursoy, Liu, "Data poisoning attacks against federated learning systems",
ESORICS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


class State(NamedTuple):
    """Fixed for the run."""

    highest_label: Tensor


@dataclass(frozen=True)
class LabelFlip:
    """Gradient on flipped labels."""

    knows = "own"
    recordable = True
    presets = {"stealth": {}}  # it is quiet as it comes

    def init(self, context: AttackContext) -> State:
        highest = max(context.num_classes - 1, 0)  # 0 in a regression, whose mirror stands at 0
        return State(torch.tensor(highest, device=context.pixel_mean.device))

    def poison_batch(
        self,
        state: State,
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        return inputs, state.highest_label - labels

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        return arrival.gradient, state
