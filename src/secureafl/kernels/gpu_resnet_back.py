"""The way back through the layers of ResNet-20 on a GPU; `kernels.gpu_resnet` is the way there.

Where a gradient has passed a ReLU, each program leaves its two sums per channel that the batch
normalisation before it needs; the gradient of that convolution's weights, which comes next, adds
them up, and leaves the gradient of its outputs for that of its inputs.
"""

import triton
import triton.language as tl

from secureafl.kernels.gpu_resnet import _inputs_of_tap, _patches, _place, _share


@triton.jit
def add_up(parts, table, gradient, columns: tl.constexpr, rows: tl.constexpr, block: tl.constexpr):
    """Add up what programs found of every convolution's weights, and bring it back in order."""
    row = table + columns * tl.program_id(0)
    begin, size, taps = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    place, count = tl.load(row + 4), tl.load(row + 5)
    number = tl.program_id(1) * block + tl.arange(0, block)
    known = number < size * taps
    part = tl.arange(0, rows)[:, None]
    total = tl.zeros((rows, block), tl.float32)
    if tl.program_id(1) * block < size * taps:
        for first in range(0, count, rows):
            each = (first + part) * (size * taps) + number[None, :]
            there = (first + part < count) & known[None, :]
            total += tl.load(parts + place + each, mask=there, other=0.0)
        at = begin + number % size * taps + number // size
        tl.store(gradient + at, tl.sum(total, axis=0), mask=known)


@triton.jit
def _normalisation_back(
    sums, kept, weights, gradient, at, count, first,
    channels: tl.constexpr, programs: tl.constexpr,
):  # fmt: skip
    """Mean, factor, average and slope: the gradient is factor (g - average - (z - mean) slope).

    The first program writes the gradients of the normalisation's own parameters.
    """
    channel = tl.arange(0, channels)
    each = tl.arange(0, programs)[:, None] * channels + channel[None, :]
    plain = tl.sum(tl.load(sums + each), axis=0)
    product = tl.sum(tl.load(sums + programs * channels + each), axis=0)
    if first:
        tl.store(gradient + at + channel, product)
        tl.store(gradient + at + channels + channel, plain)
    inverse = tl.load(kept + channels + channel)
    factor = tl.load(weights + at + channel) * inverse
    return tl.load(kept + channel), factor, plain / count, product / count * inverse


@triton.jit
def _before_normalisation(
    gradients, outputs, position, count, mean, factor, average, slope, channels: tl.constexpr
):
    """The gradient of a convolution's outputs at these positions, of any value beyond the last."""
    known = (position < count)[:, None]
    place = position[:, None] * channels + tl.arange(0, channels)[None, :]
    given = tl.load(gradients + place, mask=known, other=0.0)
    off = tl.load(outputs + place, mask=known, other=0.0).to(tl.float32) - mean[None, :]
    found = factor[None, :] * (given.to(tl.float32) - average[None, :] - off * slope[None, :])
    return found.to(given.dtype)


@triton.jit
def _store_part(parts, found, tap, column, before: tl.constexpr, after: tl.constexpr):
    place = (tap * after + tl.arange(0, after)[:, None]) * before + column[None, :]
    tl.store(parts + place, found)


@triton.jit(do_not_specialize=["at", "at_in", "count"])
def weight_gradient(
    gradients, outputs, sums, kept, inputs, kept_in, weights, gradient, before_norm, parts,
    at, at_in, count,
    height: tl.constexpr, width: tl.constexpr, before: tl.constexpr, after: tl.constexpr,
    stride: tl.constexpr, normed: tl.constexpr, programs: tl.constexpr, shares: tl.constexpr,
    columns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's weights: each program's part of the positions and of the inputs.

    The first of the inputs' programs also leave the gradient of the convolution's outputs.
    """
    part, column = tl.program_id(0), tl.program_id(1) * columns + tl.arange(0, columns)
    first = (part == 0) & (tl.program_id(1) == 0)
    mean, factor, average, slope = _normalisation_back(
        sums, kept, weights, gradient, at, count, first, after, programs
    )
    nothing = tl.zeros((columns,), tl.float32)
    mean_in, factor_in, shift_in = nothing, nothing, nothing
    if normed:
        mean_in = tl.load(kept_in + column)
        factor_in = tl.load(kept_in + before + column) * tl.load(weights + at_in + column)
        shift_in = tl.load(weights + at_in + before + column)
    w0 = tl.zeros((after, columns), tl.float32)
    w1, w2, w3, w4, w5, w6, w7, w8 = w0, w0, w0, w0, w0, w0, w0, w0
    share = _share(count, shares, block)
    for start in range(part * share, tl.minimum(part * share + share, count), block):
        position = start + tl.arange(0, block)
        back = _before_normalisation(
            gradients, outputs, position, count, mean, factor, average, slope, after
        )
        if tl.program_id(1) == 0:
            place = position[:, None] * after + tl.arange(0, after)[None, :]
            tl.store(before_norm + place, back, mask=(position < count)[:, None])
        back = tl.trans(back)
        for tap in tl.static_range(9):
            seen = _inputs_of_tap(
                inputs, position, count, tap, column, mean_in, factor_in, shift_in,
                height, width, before, stride, normed,
            )  # fmt: skip
            if tap == 0:
                w0 = tl.dot(back, seen, w0, input_precision="tf32")
            elif tap == 1:
                w1 = tl.dot(back, seen, w1, input_precision="tf32")
            elif tap == 2:
                w2 = tl.dot(back, seen, w2, input_precision="tf32")
            elif tap == 3:
                w3 = tl.dot(back, seen, w3, input_precision="tf32")
            elif tap == 4:
                w4 = tl.dot(back, seen, w4, input_precision="tf32")
            elif tap == 5:
                w5 = tl.dot(back, seen, w5, input_precision="tf32")
            elif tap == 6:
                w6 = tl.dot(back, seen, w6, input_precision="tf32")
            elif tap == 7:
                w7 = tl.dot(back, seen, w7, input_precision="tf32")
            else:
                w8 = tl.dot(back, seen, w8, input_precision="tf32")
    parts += part * (9 * before * after)
    _store_part(parts, w0, 0, column, before, after)
    _store_part(parts, w1, 1, column, before, after)
    _store_part(parts, w2, 2, column, before, after)
    _store_part(parts, w3, 3, column, before, after)
    _store_part(parts, w4, 4, column, before, after)
    _store_part(parts, w5, 5, column, before, after)
    _store_part(parts, w6, 6, column, before, after)
    _store_part(parts, w7, 7, column, before, after)
    _store_part(parts, w8, 8, column, before, after)


@triton.jit(do_not_specialize=["at", "count"])
def image_weight_gradient(
    gradients, outputs, sums, kept, images, weights, gradient, parts, at, count,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, patch_size: tl.constexpr,
    programs: tl.constexpr, shares: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradient of the first convolution's weights, each program's part of the positions."""
    part = tl.program_id(0)
    mean, factor, average, slope = _normalisation_back(
        sums, kept, weights, gradient, at, count, part == 0, channels, programs
    )
    found = tl.zeros((channels, patch_size), tl.float32)
    share = _share(count, shares, block)
    for start in range(part * share, tl.minimum(part * share + share, count), block):
        position = start + tl.arange(0, block)
        back = _before_normalisation(
            gradients, outputs, position, count, mean, factor, average, slope, channels
        )
        patch = _patches(images, position, count, height, width, patch_size).to(back.dtype)
        found = tl.dot(tl.trans(back), patch, found, input_precision="tf32")
    channel, number = tl.arange(0, channels)[:, None], tl.arange(0, patch_size)[None, :]
    place = (part * channels + channel) * 27 + number
    tl.store(parts + place, found, mask=number < 27)


@triton.jit
def _past_relu(
    given, active, outputs, kept, gradients, position, count, plain, product,
    channels: tl.constexpr,
):  # fmt: skip
    """Store a gradient that has passed a ReLU; the two sums with those of these positions.

    A sum of gradients, and one of gradients times what the batch normalisation before made.
    """
    known, channel = (position < count)[:, None], tl.arange(0, channels)
    place = position[:, None] * channels + channel[None, :]
    found = tl.where(active <= 0, 0.0, given).to(gradients.dtype.element_ty)
    tl.store(gradients + place, found, mask=known)
    off = tl.load(outputs + place, mask=known, other=0.0).to(tl.float32)
    off -= tl.load(kept + channel)[None, :]
    normal = off * tl.load(kept + channels + channel)[None, :]
    found = found.to(tl.float32)  # 0 beyond the last position, as what was given
    return plain + tl.sum(found, axis=0), product + tl.sum(found * normal, axis=0)


@triton.jit
def _store_sums(sums, plain, product, channels: tl.constexpr, programs: tl.constexpr):
    each = tl.program_id(0) * channels + tl.arange(0, channels)
    tl.store(sums + each, plain)
    tl.store(sums + programs * channels + each, product)


@triton.jit(do_not_specialize=["count"])
def pool_gradient(
    pooled, activations, outputs, kept, gradients, sums, count,
    pixels: tl.constexpr, channels: tl.constexpr, programs: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradient before the last ReLU, from that of the means of all pixels of an image."""
    channel = tl.arange(0, channels)
    plain, product = tl.zeros((channels,), tl.float32), tl.zeros((channels,), tl.float32)
    share = _share(count, programs, block)
    begin = tl.program_id(0) * share
    for start in range(begin, tl.minimum(begin + share, count), block):
        position = start + tl.arange(0, block)
        known, place = (position < count)[:, None], position[:, None] * channels + channel[None, :]
        its_mean = (position // pixels)[:, None] * channels + channel[None, :]
        given = tl.load(pooled + its_mean, mask=known, other=0.0) / pixels
        active = tl.load(activations + place, mask=known, other=0.0)
        plain, product = _past_relu(
            given, active, outputs, kept, gradients, position, count, plain, product, channels
        )
    _store_sums(sums, plain, product, channels, programs)


@triton.jit
def _transposed(
    back, packed, position, count,
    height: tl.constexpr, width: tl.constexpr, before: tl.constexpr, after: tl.constexpr,
    stride: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The gradient of a convolution's inputs at these positions."""
    image, y, x = _place(position, height, width)
    channel_in, channel = tl.arange(0, before), tl.arange(0, after)
    found = tl.zeros((block, before), tl.float32)
    for tap in range(9):
        line, column = y + 1 - tap // 3, x + 1 - tap % 3
        inside = (position < count) & (line >= 0) & (column >= 0)
        inside = inside & (line % stride == 0) & (column % stride == 0)
        line, column = line // stride, column // stride
        inside = inside & (line <= (height - 1) // stride) & (column <= (width - 1) // stride)
        at = (image * ((height - 1) // stride + 1) + line) * ((width - 1) // stride + 1) + column
        at = at[:, None] * after + channel[None, :]
        given = tl.load(back + at, mask=inside[:, None], other=0.0)
        place = (tap * after + channel[:, None]) * before + channel_in[None, :]
        found = tl.dot(given, tl.load(packed + place), found, input_precision="tf32")
    return found


@triton.jit(do_not_specialize=["at", "count"])
def input_gradient(
    back, packed, past, activations, outputs, kept, weights, gradients, sums, at, count,
    height: tl.constexpr, width: tl.constexpr, before: tl.constexpr, after: tl.constexpr,
    stride: tl.constexpr, shortcut: tl.constexpr, programs: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's inputs, past the ReLU that made them.

    With `shortcut` the inputs are a block's, which are in memory, and the gradient `past` the
    block's last ReLU is added; without, they are the outputs of the convolution before, normalised.
    """
    channel = tl.arange(0, before)
    plain, product = tl.zeros((before,), tl.float32), tl.zeros((before,), tl.float32)
    share = _share(count, programs, block)
    begin = tl.program_id(0) * share
    for start in range(begin, tl.minimum(begin + share, count), block):
        position = start + tl.arange(0, block)
        known, place = (position < count)[:, None], position[:, None] * before + channel[None, :]
        found = _transposed(
            back, packed, position, count, height, width, before, after, stride, block
        )
        if shortcut:
            image, y, x = _place(position, height, width)
            there = known & ((y % stride == 0) & (x % stride == 0))[:, None]
            its = (image * ((height - 1) // stride + 1) + y // stride) * ((width - 1) // stride + 1)
            its = (its + x // stride)[:, None] * after + (after - before) // 2 + channel[None, :]
            found += tl.load(past + its, mask=there, other=0.0).to(tl.float32)
            active = tl.load(activations + place, mask=known, other=0.0).to(tl.float32)
        else:
            factor = tl.load(kept + before + channel) * tl.load(weights + at + channel)
            off = tl.load(outputs + place, mask=known, other=0.0).to(tl.float32)
            off -= tl.load(kept + channel)[None, :]
            active = off * factor[None, :] + tl.load(weights + at + before + channel)[None, :]
        plain, product = _past_relu(
            found, active, outputs, kept, gradients, position, count, plain, product, before
        )
    _store_sums(sums, plain, product, before, programs)
