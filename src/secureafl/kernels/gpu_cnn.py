"""Gradient and outputs of the paper's CNN on a GPU (`gpu_cnn.cu`).

A gradient is six launches instead of sixty. For outputs, what a convolution gives before it is
pooled is never written to memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.kernels.cnn_sizes import (
    CHANNELS_1,
    CHANNELS_2,
    CLASSES,
    FEATURES,
    LAYER_1,
    LAYER_2,
    SIDE,
    hidden_units,
)
from secureafl.kernels.gpu_source import compiled

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

MAX_IMAGES = 1000  # of a batch: the logits of all must fit into the shared memory of a block
_AT_A_TIME = 2500  # images of which outputs are computed, with 25 kB for each on the way

_SIZE_1 = CHANNELS_1 * 13 * 13  # of an image after the first pooling
_FORWARD_THREADS, _FORWARD_UNITS, _BLOCK_UNITS, _BLOCK_IMAGES = 160, 4, 10, 8
_BACKWARD_THREADS, _GROUPS = 32 * 13, 16  # a warp for every line; groups of images

_NUMBERS = (
    *(("SIDE", SIDE), ("CLASSES", CLASSES)),
    *(("CHANNELS_1", CHANNELS_1), ("CHANNELS_2", CHANNELS_2)),
    *(("FORWARD_THREADS", _FORWARD_THREADS), ("WARP_CHANNELS", 5)),  # a block: half the channels
    *(("FORWARD_UNITS", _FORWARD_UNITS), ("BLOCK_UNITS", _BLOCK_UNITS)),
    *(("BLOCK_IMAGES", _BLOCK_IMAGES), ("GROUPS", _GROUPS)),
    *(("BACKWARD_THREADS", _BACKWARD_THREADS), ("CHUNK", 10)),  # channels loaded at a time
)


def cnn_gradient(
    weights: Float[Tensor, " d"],
    inputs: Float[Tensor, "batch 1 28 28"],
    labels: Int[Tensor, " batch"],
) -> Float[Tensor, " d"]:
    """Gradient of the mean cross entropy of `tasks.models.paper_cnn`, with any hidden layer."""
    images, hidden = len(inputs), hidden_units(weights.numel())
    inputs, gradient = inputs.contiguous(), torch.empty_like(weights)
    gradient_1, parts = weights.new_empty(2, images, _SIZE_1), weights.new_empty(_GROUPS, LAYER_2)
    pooled_2, gradient_2 = weights.new_empty(2, images, FEATURES)
    units, unit_gradient = weights.new_empty(2, images, hidden)
    pooled_1, argmax_1, argmax_2 = _convolve(weights, inputs, pooled_2, hidden)

    def launch(name: str, grid: tuple[int, ...], threads: int, given: list[Any], room=0) -> None:
        _kernel(name, hidden)((*grid, 1, 1)[:3], (threads, 1, 1), given, shared_mem=room)

    given = [weights, pooled_2, units, images]
    launch("hidden_forward", (-(-hidden // _FORWARD_UNITS),), 256, given)
    given = [weights, units, labels, gradient, unit_gradient, images]
    launch("output_layer", (1,), 1024, given, room=4 * CLASSES * images)
    columns, lines = -(-FEATURES // 128), -(-hidden // _BLOCK_UNITS) + -(-images // _BLOCK_IMAGES)
    given = [weights, pooled_2, unit_gradient, gradient, gradient_2, images]
    launch("hidden_backward", (columns, lines), 128, given)
    slices = -(-CHANNELS_2 // (_BACKWARD_THREADS // 32))
    blocks, given = slices * _GROUPS + 2 * images, [weights, pooled_1, gradient_2, argmax_2]
    given += [parts, gradient_1, images]
    launch("convolution_2_backward", (blocks,), _BACKWARD_THREADS, given)
    given = [inputs, pooled_1, gradient_1, argmax_1, parts, gradient, images]
    launch("convolution_1_backward", (CHANNELS_1 + -(-LAYER_2 // 1024),), 1024, given)
    return gradient


def cnn_outputs(
    weights: Float[Tensor, " d"], inputs: Float[Tensor, "images 1 28 28"]
) -> Float[Tensor, "images 10"]:
    """Outputs of `tasks.models.paper_cnn`, with any hidden layer."""
    hidden = hidden_units(weights.numel())
    features = weights.new_empty(len(inputs), FEATURES)
    parts = inputs.contiguous().split(_AT_A_TIME), features.split(_AT_A_TIME)
    for images, rows in zip(*parts, strict=True):
        _convolve(weights, images, rows, hidden)
    layers = weights[LAYER_1 + LAYER_2 :]
    sizes = [hidden * FEATURES, hidden, CLASSES * hidden, CLASSES]
    weights_3, biases_3, weights_4, biases_4 = layers.split(sizes)
    units = torch.addmm(biases_3, features, weights_3.view(hidden, -1).T).relu_()
    return torch.addmm(biases_4, units, weights_4.view(CLASSES, -1).T)


def _convolve(weights: Tensor, inputs: Tensor, pooled_2: Tensor, hidden: int) -> list[Tensor]:
    """Write what both convolutions make of images, a row for each.

    Returns what the first one makes of them, and which places were the largest, of both.
    """
    pooled_1 = weights.new_empty(len(inputs), _SIZE_1)
    argmax_1, argmax_2 = (torch.empty_like(one, dtype=torch.uint8) for one in (pooled_1, pooled_2))
    grid, threads = (len(inputs), 2, 1), (_FORWARD_THREADS, 1, 1)
    given = [weights, inputs, pooled_1, argmax_1, pooled_2, argmax_2]
    _kernel("convolutions_forward", hidden)(grid, threads, given)
    return [pooled_1, argmax_1, argmax_2]


def _kernel(name: str, hidden: int) -> Any:
    return compiled("gpu_cnn.cu", name, (*_NUMBERS, ("HIDDEN", hidden)))
