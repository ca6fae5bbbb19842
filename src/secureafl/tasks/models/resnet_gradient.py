"""ResNet-20 with batch normalisation on a GPU: the walk through its layers, and back.

The convolutions are numbered as they come: the first, then two for each of the nine blocks. In the
flat vector (`core.flat_model`) each one's weights are followed by its normalisation's factors and
shifts; the last layer comes next, and after all parameters the running statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from secureafl.kernels import gpu_resnet
from secureafl.kernels.gpu_resnet import Block, Layer, Sizes

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.tasks.models.resnet import ResNet20

_WIDTHS = [16] * 7 + [32] * 6 + [64] * 6  # channels of each convolution's outputs
_FEATURES, _STATISTICS = _WIDTHS[-1], 2 * sum(_WIDTHS)


class _Convolution(NamedTuple):
    """Which one it is, and where its weights begin: in the flat vector, and packed.

    Those of the first are not packed.
    """

    number: int
    before: int  # channels
    after: int
    weight: int = 0
    packed: int = 0

    @property
    def size(self) -> int:
        return 9 * self.before * self.after

    @property
    def norm(self) -> int:
        """Where its normalisation's factors begin in the flat vector; the shifts come next."""
        return self.weight + self.size

    @property
    def end(self) -> tuple[int, int]:
        """Where the next one's weights begin."""
        return self.norm + 2 * self.after, self.packed + (self.size if self.number else 0)


def _convolutions() -> list[_Convolution]:
    made = [_Convolution(0, 3, 16)]
    for number, (before, after) in enumerate(pairwise(_WIDTHS), 1):
        made.append(_Convolution(number, before, after, *made[-1].end))
    return made


_CONVOLUTIONS = _convolutions()
_LAST, _PACKED = _CONVOLUTIONS[-1].end  # the last layer begins where they end


@functools.cache
def _table(blocks: tuple[int, ...], device: torch.device) -> tuple[Tensor, list[int]]:
    """All convolutions but the first, for the kernels that work on the weights of all of them.

    Also where each one's parts of the gradient begin, which are by blocks, and where they end.
    """
    rows, begin, places = [], 0, [0]
    for one, count in zip(_CONVOLUTIONS[1:], blocks, strict=True):
        row = (one.weight, one.packed, places[-1], one.before, one.after, count, begin)
        rows.append(row)
        begin += one.before * one.after
        places.append(places[-1] + count * one.size)
    return torch.tensor(rows, dtype=torch.int32, device=device), places


def resnet_gradient(
    model: ResNet20,
    weights: Float[Tensor, " d"],
    images: Float[Tensor, "batch 3 height width"],
    loss: Callable[[Tensor], Tensor],
    mixed: bool,
) -> tuple[Float[Tensor, " d"], Float[Tensor, " statistics"]]:
    """Gradient of the loss of the outputs, 0 for statistics, and how far these move down.

    With `mixed`, activations and products are in bfloat16, otherwise in float32 and TF32.
    """
    dtype = torch.bfloat16 if mixed else torch.float32
    walk = _Walk(model, weights, images, dtype, evaluating=False)
    walk.backward(walk.last_layer(walk.forward(), loss))
    return walk.gradient, walk.moved


def resnet_outputs(
    model: ResNet20, weights: Float[Tensor, " d"], images: Float[Tensor, "batch 3 height width"]
) -> Float[Tensor, "batch outputs"]:
    """Outputs by the running statistics; activations are float32, products TF32."""
    walk = _Walk(model, weights, images, torch.float32, evaluating=True)
    weight, bias = (walk.weights[place] for place in walk.last)
    return linear(walk.forward(), weight.view(-1, _FEATURES), bias)


class _Walk:
    """One gradient, or one evaluation."""

    def __init__(
        self,
        model: ResNet20,
        weights: Tensor,
        images: Tensor,
        dtype: torch.dtype,
        evaluating: bool,
    ) -> None:
        self.weights, self.images = weights.detach().contiguous(), images.contiguous()
        self.evaluating = evaluating
        bias = _LAST + model.last.out_features * _FEATURES
        self.last = slice(_LAST, bias), slice(bias, bias + model.last.out_features)
        norm: Any = model.norm
        self.norm = (norm.momentum, norm.eps)
        # The first kernel sets the statistics' part to 0; an evaluation has no other.
        self.gradient = weights.new_empty(_STATISTICS if evaluating else weights.numel())
        self.moved = weights.new_empty(_STATISTICS)
        self.packed = weights.new_empty(2, _PACKED, dtype=dtype)
        sizes, (height, width) = [], images.shape[2:]
        for one in _CONVOLUTIONS:
            sizes.append(Sizes(one.before, one.after, len(images), height, width, dtype))
            height, width = sizes[-1].out
        there = [gpu_resnet.image_blocks(sizes[0])]
        there += [gpu_resnet.tiles_there(its).blocks for its in sizes[1:]]
        back = [gpu_resnet.tiles_back(its).blocks for its in sizes[1:]]
        self.table, places = _table(tuple(back), weights.device)
        self.parts = weights.new_empty(0 if evaluating else places[-1])
        parts = [weights.new_empty(there[0], _CONVOLUTIONS[0].size)]
        parts += [self.parts[place:] for place in places[:-1]]
        back.append(gpu_resnet.pool_blocks(len(images)))
        made = zip(_CONVOLUTIONS, sizes, there, back, parts, strict=True)
        self.layers = [self._layer(*each) for each in made]
        self.blocks: list[Block] = []  # that were begun on the way there, and not on the way back

    def _layer(
        self, one: _Convolution, sizes: Sizes, there: int, back: int, parts: Tensor
    ) -> Layer:
        """With as many blocks for its outputs, and for the gradient after its normalisation."""
        channels, statistics = one.after, 2 * sum(_WIDTHS[: one.number])
        return Layer(
            sizes,
            norm=one.norm,
            running=self.weights.numel() - _STATISTICS + statistics,
            packed=self.packed[0, one.packed :],
            packed_back=self.packed[1, one.packed :],
            outputs=self.packed.new_empty(sizes.positions, channels),
            partial=self.weights.new_empty(there, 2 * channels + 1),
            kept=self.weights.new_empty(2 * channels),
            moved=self.moved[statistics:],
            sums=self.weights.new_empty(back, 2 * channels),
            parts=parts,
            evaluating=self.evaluating,
        )

    def forward(self) -> Float[Tensor, "batch features"]:
        """Features of the images, which the last layer takes."""
        before, *layers = self.layers
        zeros = self.gradient[-_STATISTICS:]
        gpu_resnet.convolve_images(
            before, self.images, self.weights, self.table, self.packed, zeros
        )
        for one, two in zip(layers[::2], layers[1::2], strict=True):
            inputs = torch.empty_like(before.outputs)
            shortcut = self.blocks[-1] if self.blocks else None
            gpu_resnet.convolve(one, before, self.weights, self.norm, shortcut, inputs)
            gpu_resnet.convolve(two, one, self.weights, self.norm, None, None)
            self.blocks.append(Block(inputs, one.sizes))
            before = two
        self.active = torch.empty_like(before.outputs)
        start = self.blocks[-1].inputs
        return gpu_resnet.pool(before, self.weights, self.norm, start, self.active)

    def last_layer(self, features: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradient of the features; that of the layer itself is written."""
        weight, bias = (self.weights[place].requires_grad_() for place in self.last)
        outputs = linear(features.requires_grad_(), weight.view(-1, _FEATURES), bias)
        found, *own = torch.autograd.grad(loss(outputs), (features, weight, bias))
        torch.cat(own, out=self.gradient[self.last[0].start : self.last[1].stop])
        return found

    def backward(self, features: Tensor) -> None:
        """From the gradient of the features to those of all parameters before."""
        layers, given = self.layers, (self.weights, self.gradient)
        # The gradient past the last ReLU of a block.
        past = gpu_resnet.pool_gradient(layers[-1], features.contiguous(), self.active)
        triples = zip(layers[-3::-2], layers[-2::-2], layers[:0:-2], strict=True)
        for before, one, two in triples:
            start = self.blocks.pop().inputs
            between = gpu_resnet.convolve_back(two, one, *given, past, None, None)
            past = gpu_resnet.convolve_back(one, before, *given, between, start, past)
        rest = (self.parts, self.table, _PACKED // 9)
        gpu_resnet.image_weight_gradient(layers[0], self.images, past, *given, *rest)
