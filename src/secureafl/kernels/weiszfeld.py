"""Distances from the geometric median of vectors; those of few vectors in one launch on a GPU.

In plain torch the iteration is some two hundred operations on a few dozen numbers each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.kernels.dispatch import on_gpu
from secureafl.kernels.gpu_source import compiled
from secureafl.linalg import weiszfeld
from secureafl.linalg.pairwise import ROUNDING
from secureafl.linalg.weiszfeld import ITERATIONS, SMOOTHING

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

MOST = 128  # vectors: one block goes through all their products, more would take it too long


def distances_from_median(
    products: Float[Tensor, "n n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Distance of each vector from the weighted geometric median of all, in float64."""
    if not (0 < len(weights) <= MOST and products.dtype == torch.float64 and on_gpu(products)):
        return weiszfeld.distances_from_median(products, weights)
    found = torch.empty_like(weights, dtype=torch.float64)
    numbers = (("CLIENTS", len(weights)), ("ROUNDING", ROUNDING))
    kernel = compiled("gpu_weiszfeld.cu", "distances_from_median", numbers)
    given = [products.contiguous(), weights.double(), found, ITERATIONS, SMOOTHING]
    kernel((1, 1, 1), (1024, 1, 1), given)
    return found
