"""The layers of ResNet-20 on a GPU, as `tasks.models.resnet_gradient` calls them, there and back.

Activations lie with the channels innermost. A block computes tiles, some lines of an image or some
small images, whose inputs it brings into shared memory once; each tap of a convolution is then a
product on tensor cores of rows that lie there (`gpu_resnet.cu`, `gpu_resnet_back.cu`). Batch
normalisation, ReLU and shortcuts have no launches of their own: a convolution leaves the statistics
of what each block wrote; whoever reads that next adds them up in a fixed order and normalises while
loading. Additions are never atomic, so every run has the same bits.

Activations and operands of products are bfloat16 or float32 (in products TF32); statistics, sums
and gradients of weights are float32. Comparisons are such that what is not a number passes a ReLU.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.kernels.gpu_source import compiled, counter_for

if TYPE_CHECKING:
    from torch import Tensor

_Room = dict[tuple[int, int], tuple[int, int, int]]

_THREADS = 256
# Blocks, by channels of what is written. Whoever reads it adds up numbers of all blocks that wrote
# it, so there are few of them; runs that share the GPU keep the rest of it busy. On the way back
# each block also leaves a part of the weights' gradient.
_BLOCKS, _BLOCKS_BACK = {16: 128, 32: 64, 64: 32}, {16: 128, 32: 32, 64: 16}
_IMAGE_BLOCKS, _POOL_BLOCKS, _PACK_BLOCKS = 128, 64, 132
_IMAGE_TILE = {torch.bfloat16: 256, torch.float32: 128}  # positions, of the first convolution
_SLICE = 32  # most channels of inputs that a block has on the way back
_ADDED = 64  # pairs of channels whose parts a block adds up
# Of tiles, by channels before and after: warps along the positions, 16 positions each of so many
# products, and positions with their rim, for which there is room in shared memory.
_THERE = {
    torch.bfloat16: {
        (16, 16): (8, 4, 640),
        (16, 32): (8, 1, 576),
        (32, 32): (8, 2, 352),
        (32, 64): (4, 1, 304),
        (64, 64): (4, 2, 200),
    },
    torch.float32: {
        (16, 16): (8, 2, 352),
        (16, 32): (4, 1, 304),
        (32, 32): (8, 1, 192),
        (32, 64): (2, 1, 160),
        (64, 64): (4, 1, 112),
    },
}
_BACK = {
    torch.bfloat16: {
        (16, 16): (8, 2, 352),
        (16, 32): (8, 1, 160),
        (32, 32): (4, 2, 192),
        (32, 64): (4, 1, 84),
        (64, 64): (4, 2, 200),
    },
    torch.float32: {
        (16, 16): (8, 1, 208),
        (16, 32): (4, 1, 88),
        (32, 32): (4, 1, 112),
        (32, 64): (2, 1, 48),
        (64, 64): (4, 1, 112),
    },
}


class Sizes(NamedTuple):
    """Of a convolution: channels before and after, and its inputs; activations have the type."""

    before: int
    after: int
    images: int
    height: int
    width: int
    dtype: torch.dtype

    @property
    def stride(self) -> int:
        """2 where channels double."""
        return 2 if self.after == 2 * self.before else 1

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the outputs."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def positions(self) -> int:
        """How many outputs there are of each channel."""
        return self.images * self.out[0] * self.out[1]


class Tiles(NamedTuple):
    """How outputs are cut: lines, columns and images of a tile, and how many blocks compute."""

    lines: int
    columns: int
    group: int
    blocks: int


def tiles_there(sizes: Sizes) -> Tiles:
    """Of a convolution's outputs; what they see is two lines and columns more, or one."""
    return _cut(sizes, _THERE[sizes.dtype], _BLOCKS[sizes.after], sizes.stride, 3)


def tiles_back(sizes: Sizes) -> Tiles:
    """Of the gradient of the outputs, by which inputs they see; likewise."""
    return _cut(sizes, _BACK[sizes.dtype], _BLOCKS_BACK[sizes.after], 1, 4 - sizes.stride)


def image_blocks(sizes: Sizes) -> int:
    """Blocks of the first convolution, there and back."""
    return _balanced(-(-sizes.positions // _IMAGE_TILE[sizes.dtype]), _IMAGE_BLOCKS)


def pool_blocks(images: int) -> int:
    """Blocks that leave sums of the gradient of the last activations."""
    return _balanced(images, _POOL_BLOCKS)


def _cut(sizes: Sizes, room: _Room, most: int, step: int, seen: int) -> Tiles:
    """As few tiles as there is room for; one output sees so many lines, the next one a step on."""
    warps, products, rows = room[sizes.before, sizes.after]
    lines, columns, group, count = _best_cut(
        *sizes.out, sizes.images, 16 * warps * products, rows, step, seen
    )
    return Tiles(lines, columns, group, _balanced(count, most))


def _balanced(tiles: int, most: int) -> int:
    """As few blocks as take no longer than the most blocks would."""
    return -(-tiles // -(-tiles // most))


@functools.cache
def _best_cut(
    height: int, width: int, images: int, positions: int, rows: int, step: int, seen: int
) -> tuple[int, int, int, int]:
    """Lines, columns and images of a tile, and how many tiles that makes."""
    found = []
    for across in range(1, width + 1):
        columns = -(-width // across)
        box_width = step * (columns - 1) + seen
        lines = min(positions // columns, (rows // box_width - seen) // step + 1, height)
        if lines < 1:
            continue
        down = -(-height // lines)
        lines = -(-height // down)
        box = (step * (lines - 1) + seen) * box_width
        whole = lines == height and columns == width
        group = min(positions // (lines * columns), rows // box, images) if whole else 1
        count = -(-images // group) * -(-height // lines) * -(-width // columns)
        found.append((count, box * group, lines, columns, group))
    count, _, lines, columns, group = min(found)
    return lines, columns, group, count


class Layer(NamedTuple):
    """A convolution and its normalisation, with what they leave in memory."""

    sizes: Sizes
    norm: int  # where in the weights the normalisation's factors begin, and the shifts after them
    running: int  # where its running statistics begin
    packed: Tensor  # weights for the way there and for the way back
    packed_back: Tensor
    outputs: Tensor  # before the normalisation
    partial: Tensor  # statistics of what each block wrote of them, a row each
    kept: Tensor  # mean and inverse deviation
    moved: Tensor  # how far the running statistics move down
    sums: Tensor  # of gradients after the normalisation, a row for each block that wrote some
    parts: Tensor  # of the weights' gradient, by block
    evaluating: bool  # normalised by the running statistics

    @property
    def rows(self) -> int:
        """Rows of statistics that the normalisation is by; none if it is by the running ones."""
        return 0 if self.evaluating else len(self.partial)


class Block(NamedTuple):
    """Inputs of a block of the network, and the sizes of its first convolution, which has them."""

    inputs: Tensor
    sizes: Sizes


def convolve_images(
    layer: Layer, images: Tensor, weights: Tensor, table: Tensor, packed: Tensor, zeros: Tensor
) -> None:
    """The first convolution; all others' weights are packed, and `zeros` are set to 0."""
    blocks = len(layer.partial)
    given = [images, weights, layer.outputs, layer.partial, table, packed, zeros]
    given += [layer.sizes.positions, blocks, len(table), packed.numel() // 2, zeros.numel()]
    kernel = compiled("gpu_resnet_images.cu", "convolve_images", _of_images(layer.sizes))
    kernel((blocks + _PACK_BLOCKS, 1, 1), (_THREADS, 1, 1), given)


def convolve(
    layer: Layer,
    before: Layer,
    weights: Tensor,
    norm: tuple[float, float],
    shortcut: Block | None,
    active: Tensor | None,
) -> None:
    """A convolution of what the layer before gave, with a shortcut added if there is one.

    `active` keeps the convolution's inputs; `norm` is momentum and epsilon.
    """
    sizes, tiles = layer.sizes, tiles_there(layer.sizes)
    block, its = shortcut or Block(before.outputs, before.sizes)
    given = [before.outputs, before.partial, before.kept, before.moved, weights, block]
    given += [before.outputs if active is None else active, layer.packed, layer.outputs]
    given += [layer.partial, before.rows, before.norm, before.running]
    given += [sizes.images, active is not None]
    given += [its.before if shortcut else 0, its.stride, its.height, its.width, *norm]
    kernel = compiled("gpu_resnet.cu", "convolve", _of_tiles(sizes, tiles, _THERE))
    kernel((tiles.blocks, 1, 1), (_THREADS, 1, 1), given)


def convolve_back(
    layer: Layer,
    before: Layer,
    weights: Tensor,
    gradient: Tensor,
    given: Tensor,
    start: Tensor | None,
    past: Tensor | None,
) -> Tensor:
    """The gradient past the ReLU before a convolution, from the one after its normalisation.

    `start` are the convolution's inputs, if they are a block's, and not just what the layer before
    gave; `past` is then the gradient past the shortcut. Parts of the weights' gradient are left.
    """
    sizes, tiles = layer.sizes, tiles_back(layer.sizes)
    found = torch.empty_like(before.outputs)
    tensors = [given, layer.outputs, layer.kept, layer.sums, weights, gradient, layer.packed_back]
    tensors += [before.outputs if start is None else start, before.outputs, before.kept]
    tensors += [found if past is None else past, found, before.sums, layer.parts]
    rest = [len(layer.sums), layer.norm, before.norm, sizes.images]
    slice_ = min(sizes.before, _SLICE)
    numbers = (*_of_tiles(sizes, tiles, _BACK), ("SLICE", slice_))
    kernel = compiled("gpu_resnet_back.cu", "convolve_back", numbers)
    grid = (tiles.blocks, sizes.before // slice_, 1)
    kernel(grid, (_THREADS, 1, 1), [*tensors, *rest, start is None, past is not None])
    return found


def image_weight_gradient(
    layer: Layer,
    images: Tensor,
    given: Tensor,
    weights: Tensor,
    gradient: Tensor,
    parts: Tensor,
    table: Tensor,
    pairs: int,
) -> None:
    """Gradient of the first convolution's weights; the parts of all others are added up.

    These have so many pairs of an input's and an output's channel together.
    """
    sizes, blocks = layer.sizes, len(layer.parts)
    tensors = [images, given, layer.outputs, layer.kept, layer.sums, weights, gradient]
    tensors += [layer.parts, parts, table, counter_for(weights.device)]
    rest = [len(layer.sums), layer.norm, sizes.positions, blocks, len(table)]
    kernel = compiled("gpu_resnet_images.cu", "image_weight_gradient", _of_images(sizes))
    grid = (blocks + pairs // _ADDED, 1, 1)
    kernel(grid, (_THREADS, 1, 1), [*tensors, *rest])


def pool(
    layer: Layer, weights: Tensor, norm: tuple[float, float], block: Tensor, active: Tensor
) -> Tensor:
    """The mean over each image of what comes out of the last block, which `active` keeps."""
    sizes = layer.sizes
    features = weights.new_empty(sizes.images, sizes.after)
    given = [layer.outputs, layer.partial, layer.kept, layer.moved, weights, block, active]
    given += [features, layer.rows, layer.norm, layer.running]
    kernel = compiled("gpu_resnet_pool.cu", "pool", _of_type(sizes.dtype))
    pixels = sizes.positions // sizes.images
    kernel((sizes.images, 1, 1), (_THREADS, 1, 1), [*given, pixels, *norm])
    return features


def pool_gradient(layer: Layer, features: Tensor, active: Tensor) -> Tensor:
    """The gradient past the last ReLU, from that of the features."""
    sizes, found = layer.sizes, torch.empty_like(active)
    given = [features, active, layer.outputs, layer.kept, found, layer.sums]
    given += [sizes.images, sizes.positions // sizes.images]
    kernel = compiled("gpu_resnet_pool.cu", "pool_gradient", _of_type(sizes.dtype))
    kernel((len(layer.sums), 1, 1), (_THREADS, 1, 1), given)
    return found


def _of_images(sizes: Sizes) -> tuple[tuple[str, int], ...]:
    """What a kernel knows of images when it is compiled: all but their number."""
    return (*_of_type(sizes.dtype), ("HEIGHT", sizes.height), ("WIDTH", sizes.width))


def _of_type(dtype: torch.dtype) -> tuple[tuple[str, int], ...]:
    return (("MIXED", int(dtype == torch.bfloat16)),)


def _of_tiles(
    sizes: Sizes, tiles: Tiles, room: dict[torch.dtype, _Room]
) -> tuple[tuple[str, int], ...]:
    warps, products, rows = room[sizes.dtype][sizes.before, sizes.after]
    channels = (("IN", sizes.before), ("OUT", sizes.after), ("STRIDE", sizes.stride))
    tile = (("LINES", tiles.lines), ("COLUMNS", tiles.columns), ("GROUP", tiles.group))
    room_ = (("WARP_ROWS", warps), ("ROW_TILES", products), ("MOST_ROWS", rows))
    return (*_of_images(sizes), *channels, *tile, *room_)
