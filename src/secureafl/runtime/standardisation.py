"""How inputs are standardised before a model sees them, in training and ever after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.types import Data


class Standardisation(NamedTuple):
    """Mean and standard deviation of each channel, on the scale of the raw inputs."""

    mean: Float[Tensor, " c"]
    std: Float[Tensor, " c"]

    @classmethod
    def of(cls, data: Data) -> Standardisation:
        """The one that a data set was given; bytes reach from 0 to 255."""
        white = 255 if data.train_inputs.dtype == torch.uint8 else 1
        return cls(white * data.pixel_mean, white * data.pixel_std)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs as the model takes them."""
        if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
            return inputs  # tokens, say
        channels = (-1, *[1] * (inputs.dim() - 2))
        mean, std = self.mean.view(channels), self.std.view(channels)
        return (inputs - mean) / std
