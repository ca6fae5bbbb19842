"""Label flip: train on wrong labels. Label y of z classes becomes z - 1 - y.

Tolpegin, Truex, Gursoy, Liu, "Data poisoning attacks against federated learning systems",
ESORICS 2020. Knows its own data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class State(NamedTuple):
    """Fixed for the run."""

    highest_label: Tensor


@dataclass(frozen=True)
class LabelFlip:
    """Gradient on flipped labels."""

    knows = "own"

    def init(self, scene):
        return State(torch.tensor(scene.num_classes - 1, device=scene.pixel_mean.device))

    def poison_batch(self, state, inputs, labels, member):
        return inputs, state.highest_label - labels

    def poison_update(self, state, trained, seen):
        return trained.gradient, state
