"""Gradient and outputs of the paper's CNN on a CPU: its convolutions are compiled passes.

What follows the convolutions is a few products of matrices, which torch is good at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.kernels.cnn_sizes import CHANNELS_1, CHANNELS_2, CLASSES, FEATURES, hidden_units
from secureafl.kernels.cpu_cnn_code import (
    AREA_1,
    AREA_2,
    PART_1,
    PART_2,
    WIDTH_1,
    WIDTH_2,
    backward_pass,
    forward_pass,
)
from secureafl.kernels.cpu_threads import Ranges, divide

if TYPE_CHECKING:
    from jaxtyping import Float, Int32
    from torch import Tensor

_BLOCK = 8  # images whose weight gradients are added up together, at least
_AT_A_TIME = 100  # images, so that what the convolutions leave stays in the cache
_relu_backward = torch.ops.aten.threshold_backward.default


class _Layers(NamedTuple):
    """The pieces of a flat vector: weights and biases of each layer."""

    weights_1: Float[Tensor, "30 9"]
    biases_1: Float[Tensor, " 30"]
    weights_2: Float[Tensor, "50 30 9"]
    biases_2: Float[Tensor, " 50"]
    weights_3: Float[Tensor, "hidden 1250"]
    biases_3: Float[Tensor, " hidden"]
    weights_4: Float[Tensor, "10 hidden"]
    biases_4: Float[Tensor, " 10"]

    @classmethod
    def of(cls, vector: Float[Tensor, " d"]) -> _Layers:
        hidden = hidden_units(vector.numel())
        shapes = ((CHANNELS_1, 9), (CHANNELS_2, CHANNELS_1, 9), (hidden, FEATURES))
        pieces, begin = [], 0
        for shape in (*shapes, (CLASSES, hidden)):
            for size in (shape, shape[:1]):
                end = begin + torch.Size(size).numel()
                pieces.append(vector[begin:end].view(size))
                begin = end
        return cls(*pieces)


class _Convolved(NamedTuple):
    """What the convolutions made of images; channels innermost, with room to fill registers."""

    pooled_1: Float[Tensor, "images 144 32"]
    choices_1: Int32[Tensor, "images 144 32"]
    pooled_2: Float[Tensor, "images 25 64"]
    choices_2: Int32[Tensor, "images 25 64"]

    @property
    def features(self) -> Float[Tensor, "images 1250"]:
        """What the layers after them are given, in the model's order."""
        return self.pooled_2[..., :CHANNELS_2].transpose(1, 2).reshape(-1, FEATURES)


def cnn_gradient(
    weights: Float[Tensor, " d"],
    inputs: Float[Tensor, "images 1 28 28"],
    loss: Callable[[Tensor], Tensor],
) -> Float[Tensor, " d"]:
    """Gradient of the loss of the outputs of `tasks.models.paper_cnn`, with any hidden layer."""
    layers, inputs = _Layers.of(weights.detach()), inputs.contiguous()
    gradient = torch.empty_like(weights)
    found = _Layers.of(gradient)
    convolved = _convolve(layers, inputs)
    features = convolved.features
    hidden = _hidden(layers, features)
    outputs = _last(layers, hidden).requires_grad_()
    (of_outputs,) = torch.autograd.grad(loss(outputs), outputs)
    torch.mm(of_outputs.T, hidden, out=found.weights_4)
    torch.sum(of_outputs, 0, out=found.biases_4)
    of_hidden = _relu_backward(of_outputs @ layers.weights_4, hidden, 0)
    torch.mm(of_hidden.T, features, out=found.weights_3)
    torch.sum(of_hidden, 0, out=found.biases_3)
    of_features = _relu_backward(of_hidden @ layers.weights_3, features, 0)
    _convolve_back(layers, inputs, convolved, of_features, found)
    return gradient


def cnn_outputs(
    weights: Float[Tensor, " d"], inputs: Float[Tensor, "images 1 28 28"]
) -> Float[Tensor, "images 10"]:
    """Outputs of `tasks.models.paper_cnn`."""
    layers, parts = _Layers.of(weights), inputs.contiguous().split(_AT_A_TIME)
    features = torch.cat([_convolve(layers, part).features for part in parts])
    return _last(layers, _hidden(layers, features))


def _hidden(layers: _Layers, features: Tensor) -> Tensor:
    return torch.addmm(layers.biases_3, features, layers.weights_3.T).relu_()


def _last(layers: _Layers, hidden: Tensor) -> Tensor:
    return torch.addmm(layers.biases_4, hidden, layers.weights_4.T)


def _convolve(layers: _Layers, inputs: Tensor) -> _Convolved:
    weights = (
        *(_widened(layers.weights_1.T, WIDTH_1), _widened(layers.biases_1, WIDTH_1)),
        *(_widened(layers.weights_2.permute(2, 1, 0), WIDTH_2), _widened(layers.biases_2, WIDTH_2)),
    )
    images = len(inputs)
    made = _Convolved(*_room(images, AREA_1, WIDTH_1), *_room(images, AREA_2, WIDTH_2))
    places = [tensor.data_ptr() for tensor in (inputs, *weights, *made)]
    _blocks(images).run(lambda *numbers: forward_pass()(*places, *numbers))
    return made


def _room(images: int, area: int, width: int) -> tuple[Tensor, Tensor]:
    """For what is left of each place and channel, and for where it was."""
    return torch.empty(images, area, width), torch.empty(images, area, width, dtype=torch.int32)


def _convolve_back(
    layers: _Layers, inputs: Tensor, convolved: _Convolved, of_features: Tensor, found: _Layers
) -> None:
    """Write the gradients of the convolutions."""
    by_channel = of_features.view(-1, CHANNELS_2, AREA_2)
    ranges = _blocks(len(inputs))
    parts = torch.zeros(ranges.blocks, PART_1 + PART_2)
    of_pooled_2 = _widened(by_channel.transpose(1, 2), WIDTH_2)
    weights_2 = _widened(layers.weights_2.transpose(1, 2), WIDTH_1)
    given = (inputs, *convolved[:2], of_pooled_2, convolved.choices_2, weights_2, parts)
    places = [tensor.data_ptr() for tensor in given]
    ranges.run(lambda *numbers: backward_pass()(*places, *numbers))
    of_1, of_2 = parts.sum(dim=0).split([PART_1, PART_2])
    of_1 = of_1.view(10, WIDTH_1)[:, :CHANNELS_1]
    found.weights_1.copy_(of_1[:9].T)
    found.biases_1.copy_(of_1[9])
    found.weights_2.copy_(of_2.view(CHANNELS_2, 9, WIDTH_1)[..., :CHANNELS_1].transpose(1, 2))
    torch.sum(by_channel, (0, 2), out=found.biases_2)


def _widened(values: Tensor, width: int) -> Tensor:
    """Values whose last dimension, the channels, has room to fill registers."""
    made = values.new_zeros(*values.shape[:-1], width)
    made[..., : values.shape[-1]] = values
    return made


def _blocks(images: int) -> Ranges:
    return divide(images, images, torch.get_num_threads(), _BLOCK)
