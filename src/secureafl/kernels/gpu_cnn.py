"""Gradient of the paper's CNN on a GPU (`gpu_cnn.cu`): six launches instead of sixty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.kernels.gpu_source import compiled

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

MOST_IMAGES = 1000  # of a batch; the scores of all are kept in one block's memory

_SIDE, _FIRST, _SECOND, _CLASSES = 28, 30, 50, 10  # of images; channels of the layers; classes
_ONES, _TWOS = _FIRST * 13 * 13, _SECOND * 5 * 5  # what is left of an image after each pooling
_LAYER_2 = _SECOND * (_FIRST * 9 + 1)
_SEE, _HIDE, _UNITS, _IMAGES = 160, 4, 10, 8
_BACK, _GROUPS = 32 * 13, 8  # a warp for every line

_NUMBERS = (
    *(("SIDE", _SIDE), ("FIRST", _FIRST), ("SECOND", _SECOND), ("CLASSES", _CLASSES)),
    *(("SEE", _SEE), ("AT_ONCE", 5)),  # threads, and channels a warp makes: half of all together
    *(("HIDE", _HIDE), ("UNITS", _UNITS), ("IMAGES", _IMAGES)),
    *(("BACK", _BACK), ("GROUPS", _GROUPS), ("PART", 10)),
)


def cnn_gradient(
    weights: Float[Tensor, " d"],
    inputs: Float[Tensor, "batch 1 28 28"],
    labels: Int[Tensor, " batch"],
) -> Float[Tensor, " d"]:
    """Of the mean cross entropy of `tasks.models.paper_cnn`, whatever its hidden layer's size."""
    images, hidden = len(inputs), _hidden_units(weights.numel())
    inputs, gradient = inputs.contiguous(), torch.empty_like(weights)
    ones, slopes_of_ones = weights.new_empty(2, images, _ONES)
    twos, slopes_of_twos = weights.new_empty(2, images, _TWOS)
    units, slopes_of_units = weights.new_empty(2, images, hidden)
    parts = weights.new_empty(_GROUPS, _LAYER_2)
    which_ones = torch.empty_like(ones, dtype=torch.uint8)
    which_twos = torch.empty_like(twos, dtype=torch.uint8)

    def launch(name: str, grid: tuple[int, ...], threads: int, given: list[Any], room=0) -> None:
        _kernel(name, hidden)((*grid, 1, 1)[:3], (threads, 1, 1), given, shared_mem=room)

    seen = [weights, inputs, ones, which_ones, twos, which_twos]
    launch("see", (images, 2), _SEE, seen)
    launch("hide", (-(-hidden // _HIDE),), 256, [weights, twos, units, images])
    answered = [weights, units, labels, gradient, slopes_of_units, images]
    launch("answer", (1,), 1024, answered, room=4 * _CLASSES * images)
    columns, lines = -(-_TWOS // 128), -(-hidden // _UNITS) + -(-images // _IMAGES)
    given = [weights, twos, slopes_of_units, gradient, slopes_of_twos, images]
    launch("back_to_twos", (columns, lines), 128, given)
    given = [weights, ones, slopes_of_twos, which_twos, parts, slopes_of_ones, images]
    launch("back_to_ones", (_SECOND // 2 * _GROUPS + images,), _BACK, given)
    given = [inputs, slopes_of_ones, which_ones, parts, gradient, images]
    launch("finish", (_FIRST + -(-_LAYER_2 // 1024),), 1024, given)
    return gradient


def _hidden_units(parameters: int) -> int:
    """From all parameters: those of the convolutions and the last bias, then some for each unit."""
    return (parameters - _FIRST * 10 - _LAYER_2 - _CLASSES) // (_TWOS + 1 + _CLASSES)


def _kernel(name: str, hidden: int) -> Any:
    return compiled("gpu_cnn.cu", name, (*_NUMBERS, ("HIDDEN", hidden)))
