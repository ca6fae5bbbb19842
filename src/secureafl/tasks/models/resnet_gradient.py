"""Gradient of ResNet-20 with batch normalisation on a GPU: the walk through its layers and back.

The convolutions are numbered as they come: the first, then two for each of the nine blocks. In the
flat vector (`core.flat_model`) each one's weights are followed by its normalisation's factors and
shifts; the last layer comes next, and after all parameters the running statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.tasks.models.resnet import ResNet20

_WIDTHS = [16] * 7 + [32] * 6 + [64] * 6  # channels of each convolution's outputs
_FEATURES, _STATISTICS = _WIDTHS[-1], 2 * sum(_WIDTHS)
# By channels of what is written. Every program that reads it again adds up numbers of all programs
# that wrote it, so there are few of them; runs that share the GPU keep the rest of it busy.
_PROGRAMS = {16: 128, 32: 128, 64: 64}
_BLOCK = {16: 128, 32: 128, 64: 64}  # positions at a time
_SUMS = 2 * max(programs * channels for channels, programs in _PROGRAMS.items())
# Likewise for gradients of weights: parts of the positions, which are added up at the end. Of the
# inputs' channels a program has 16, so that its nine sums fit into registers.
_SHARES, _SHARE_BLOCK, _COLUMNS = {16: 128, 32: 32, 64: 16}, 64, 16
_SHARE_WARPS = {16: 2, 32: 4, 64: 4}  # more than there are tiles of a product would be idle
_PATCH = 32  # inputs of an output of the first convolution, 27, as a power of two
_COPIED, _ADDED, _ADDED_PARTS = 1024, 256, 16  # weights at a time
# Blocks under way at a time, of convolutions and of gradients of their weights, as far as the
# shared memory of smaller GPUs allows.
_STAGES = {torch.bfloat16: (3, 2), torch.float32: (2, 1)}


class _Convolution(NamedTuple):
    """Which one it is, and where its weights begin: in the flat vector, packed, and their parts."""

    number: int
    before: int  # channels
    after: int
    weight: int = 0
    packed: int = 0
    parts: int = 0

    @property
    def stride(self) -> int:
        return self.after // self.before if self.number else 1

    @property
    def taps(self) -> int:
        """1 for the first, whose inputs are gathered in the order of its weights."""
        return 9 if self.number else 1

    @property
    def size(self) -> int:
        return 9 * self.before * self.after

    @property
    def norm(self) -> int:
        """Where its normalisation's factors begin in the flat vector; the shifts come next."""
        return self.weight + self.size

    @property
    def end(self) -> tuple[int, int, int]:
        """Where the next one's weights begin."""
        parts = self.parts + _SHARES[self.after] * self.size
        return self.norm + 2 * self.after, self.packed + self.size, parts


def _convolutions() -> list[_Convolution]:
    made = [_Convolution(0, 3, 16)]
    for number, (before, after) in enumerate(pairwise(_WIDTHS), 1):
        made.append(_Convolution(number, before, after, *made[-1].end))
    return made


_CONVOLUTIONS = _convolutions()
_LAST, _PACKED, _PARTS = _CONVOLUTIONS[-1].end  # the last layer begins where they end


@functools.cache
def _table(device: torch.device) -> Tensor:
    """The convolutions for the kernels that work on the weights of all of them."""
    rows = [
        [one.weight, one.size // one.taps, one.taps, one.packed, one.parts, _SHARES[one.after]]
        for one in _CONVOLUTIONS
    ]
    return torch.tensor(rows, dtype=torch.int32, device=device)


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
    walk = _Walk(model, weights.detach().contiguous(), images.contiguous(), dtype)
    walk.backward(walk.last_layer(walk.forward(), loss))
    return walk.gradient, walk.moved


class _Layer(NamedTuple):
    """A convolution and its normalisation, with what they leave in memory."""

    place: _Convolution
    height: int  # of its inputs
    width: int
    count: int  # positions of its outputs
    packed: Tensor  # weights
    raw: Tensor  # what the convolution gives
    partial: Tensor  # statistics of what each program wrote of that
    kept: Tensor  # mean and inverse deviation
    moved: Tensor  # how far the running statistics move down
    sums: Tensor  # of gradients after the normalisation, by program
    parts: Tensor  # of the weights' gradient


class _Walk:
    """One gradient."""

    def __init__(
        self, model: ResNet20, weights: Tensor, images: Tensor, dtype: torch.dtype
    ) -> None:
        # Only here, since Triton is there with a GPU and not without.
        from secureafl.kernels import gpu_resnet, gpu_resnet_back

        self.there, self.back = gpu_resnet, gpu_resnet_back
        self.weights, self.images, self.outputs = weights, images, model.last.out_features
        self.norm = (model.norm.momentum, model.norm.eps)
        self.table, self.gradient = _table(weights.device), torch.zeros_like(weights)
        self.moved = weights.new_empty(_STATISTICS)
        self.packed = weights.new_empty(_PACKED, dtype=dtype)
        self.parts = weights.new_empty(_PARTS)
        self.stages, self.weight_stages = _STAGES[dtype]
        self.layers, (height, width) = [], images.shape[2:]
        for one in _CONVOLUTIONS:
            self.layers.append(self._layer(one, height, width))
            height, width = -(-height // one.stride), -(-width // one.stride)
        self.active: list[Tensor] = []  # inputs of every block, and outputs of the last

    def _layer(self, one: _Convolution, height: int, width: int) -> _Layer:
        count = len(self.images) * -(-height // one.stride) * -(-width // one.stride)
        return _Layer(
            *(one, height, width, count),
            packed=self.packed[one.packed :],
            raw=self.packed.new_empty(count, one.after),
            partial=self.weights.new_empty(_SUMS),
            kept=self.weights.new_empty(2 * one.after),
            moved=self.moved[2 * sum(_WIDTHS[: one.number]) :],
            sums=self.weights.new_empty(_SUMS),
            parts=self.parts[one.parts :],
        )

    def forward(self) -> Float[Tensor, "batch features"]:
        """Features of the images, which the last layer takes."""
        blocks = -(-max(one.size for one in _CONVOLUTIONS) // _COPIED)
        grid, size = (len(_CONVOLUTIONS), blocks), self.table.shape[1]
        self.there.pack[grid](self.weights, self.table, self.packed, size, _COPIED)
        first, *layers = self.layers
        self._convolve_images(first)
        self._normalise(first, first, shortcut=False)
        for one, two in zip(layers[::2], layers[1::2], strict=True):
            self._convolve(one, self.active[-1], one, normed=False)
            self._convolve(two, one.raw, one, normed=True)
            self._normalise(two, one, shortcut=True)
        shape = (len(self.images), -1, _FEATURES)
        return self.active[-1].view(shape).mean(dim=1, dtype=torch.float32)

    def last_layer(self, features: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradient of the features; that of the layer itself is written."""
        size = self.outputs * _FEATURES
        places = slice(_LAST, _LAST + size), slice(_LAST + size, _LAST + size + self.outputs)
        weight, bias = (self.weights[place].requires_grad_() for place in places)
        outputs = linear(features.requires_grad_(), weight.view(-1, _FEATURES), bias)
        found, *own = torch.autograd.grad(loss(outputs), (features, weight, bias))
        for place, part in zip(places, own, strict=True):
            self.gradient[place] = part
        return found

    def backward(self, features: Tensor) -> None:
        """From the gradient of the features to those of all parameters before."""
        first, *layers = self.layers
        past = self._pool_gradient(features)  # the gradient past the last ReLU of a block
        for one, two in zip(layers[-2::-2], layers[::-2], strict=True):
            start = self.active.pop()
            back = self._weight_gradient(two, past, one.raw, one, normed=True)
            between = self._input_gradient(two, back, one, past, one.raw, shortcut=False)
            back = self._weight_gradient(one, between, start, one, normed=False)
            before = self.layers[one.place.number - 1]
            past = self._input_gradient(one, back, before, past, start, shortcut=True)
        self._image_weight_gradient(first, past)
        blocks = -(-max(one.size for one in _CONVOLUTIONS) // _ADDED)
        grid, size = (len(_CONVOLUTIONS), blocks), self.table.shape[1]
        self.back.add_up[grid](self.parts, self.table, self.gradient, size, _ADDED_PARTS, _ADDED)

    def _convolve_images(self, layer: _Layer) -> None:
        programs, block = _PROGRAMS[16], _BLOCK[16]
        given = (self.images, layer.packed, layer.raw, layer.partial, layer.count)
        sizes = (layer.height, layer.width, 16, _PATCH, programs, block)
        self.there.convolve_images[(programs,)](*given, *sizes, num_stages=self.stages)

    def _convolve(self, layer: _Layer, inputs: Tensor, before: _Layer, normed: bool) -> None:
        """With `normed`, the inputs are what the layer before gave."""
        place, programs = layer.place, _PROGRAMS[layer.place.after]
        given = (inputs, layer.packed, layer.raw, layer.partial)
        self.there.convolve[(programs,)](
            *(*given, before.partial, before.kept, self.weights, before.moved),
            *(before.place.norm, self._running(before), layer.count, *self.norm),
            *(layer.height, layer.width, place.before, place.after, place.stride, normed),
            *(programs, _BLOCK[place.after]),
            num_stages=self.stages,
        )

    def _normalise(self, layer: _Layer, block: _Layer, shortcut: bool) -> None:
        """Append what comes out of a block, whose first convolution has its sizes."""
        place, programs = block.place, _PROGRAMS[layer.place.after]
        inputs = self.active[-1] if shortcut else layer.raw
        self.active.append(torch.empty_like(layer.raw))
        self.there.normalise[(programs,)](
            *(layer.raw, layer.partial, layer.kept, self.weights, layer.moved),
            *(inputs, self.active[-1], layer.place.norm, self._running(layer), layer.count),
            *(*self.norm, block.height, block.width, place.before, place.after, place.stride),
            *(shortcut, programs, _BLOCK[place.after]),
        )

    def _running(self, layer: _Layer) -> int:
        """Where a layer's running statistics begin in the flat vector."""
        return self.weights.numel() - _STATISTICS + 2 * sum(_WIDTHS[: layer.place.number])

    def _pool_gradient(self, features: Tensor) -> Tensor:
        layer, past = self.layers[-1], torch.empty_like(self.active[-1])
        programs, pixels = _PROGRAMS[_FEATURES], layer.count // len(self.images)
        self.back.pool_gradient[(programs,)](
            *(features.contiguous(), self.active.pop(), layer.raw, layer.kept, past, layer.sums),
            *(layer.count, pixels, _FEATURES, programs, _BLOCK[_FEATURES]),
        )
        return past

    def _weight_gradient(
        self, layer: _Layer, past: Tensor, inputs: Tensor, before: _Layer, normed: bool
    ) -> Tensor:
        """Gradient of the convolution's outputs; that of its weights is left in parts."""
        place, back = layer.place, torch.empty_like(past)
        shares = _SHARES[place.after]
        self.back.weight_gradient[(shares, place.before // _COLUMNS)](
            *(past, layer.raw, layer.sums, layer.kept, inputs, before.kept),
            *(self.weights, self.gradient, back, layer.parts),
            *(place.norm, before.place.norm, layer.count, layer.height, layer.width),
            *(place.before, place.after, place.stride, normed, _PROGRAMS[place.after]),
            *(shares, _COLUMNS, _SHARE_BLOCK),
            num_warps=_SHARE_WARPS[place.after],
            num_stages=self.weight_stages,
        )
        return back

    def _input_gradient(
        self,
        layer: _Layer,
        back: Tensor,
        before: _Layer,
        past: Tensor,
        inputs: Tensor,
        shortcut: bool,
    ) -> Tensor:
        """Gradient past the ReLU after the layer before."""
        place, found = layer.place, torch.empty_like(before.raw)
        programs = _PROGRAMS[place.before]
        self.back.input_gradient[(programs,)](
            *(back, layer.packed, past, inputs, before.raw, before.kept),
            *(self.weights, found, before.sums, before.place.norm, before.count),
            *(layer.height, layer.width, place.before, place.after, place.stride, shortcut),
            *(programs, _BLOCK[place.before]),
            num_stages=self.stages,
        )
        return found

    def _image_weight_gradient(self, layer: _Layer, past: Tensor) -> None:
        shares, channels = _SHARES[16], 16
        self.back.image_weight_gradient[(shares,)](
            *(past, layer.raw, layer.sums, layer.kept, self.images, self.weights),
            *(self.gradient, layer.parts, layer.place.norm, layer.count),
            *(layer.height, layer.width, channels, _PATCH, _PROGRAMS[16], shares, _SHARE_BLOCK),
            num_warps=_SHARE_WARPS[16],
            num_stages=self.weight_stages,
        )
