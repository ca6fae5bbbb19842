"""The layers of ResNet-20 on a GPU, as `tasks.models.resnet_gradient` calls them.

Activations lie with the channels innermost; a position is an image, a line and a column in one
number. A convolution is a product of matrices for each of its nine taps, whose inputs are gathered
as they are needed. Batch normalisation has no pass of its own: a convolution leaves the statistics
of what each program wrote; whoever reads that next adds them up in a fixed order and normalises
while loading. There are no atomic operations, so every run has the same bits. The way back is in
`kernels.gpu_resnet_back`.

Activations and operands of products have the type of the tensors given, bfloat16 or float32 (in
products TF32); statistics, sums and gradients of weights are float32. Comparisons are such that
what is not a number passes a ReLU. This module needs Triton, which torch brings along on GPUs.
"""

import triton
import triton.language as tl


@triton.jit
def pack(weights, table, packed, columns: tl.constexpr, block: tl.constexpr):
    """Bring every convolution's weights from (after, before, tap) to (tap, after, before)."""
    row = table + columns * tl.program_id(0)
    begin, size, taps, place = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    number = tl.program_id(1) * block + tl.arange(0, block)
    known = number < size * taps
    value = tl.load(weights + begin + number % size * taps + number // size, mask=known)
    tl.store(packed + place + number, value.to(packed.dtype.element_ty), mask=known)


@triton.jit
def _share(count, programs: tl.constexpr, block: tl.constexpr):
    """How many positions a program has, whole blocks; the last ones have fewer or none."""
    return tl.cdiv(tl.cdiv(count, block), programs) * block


@triton.jit
def _place(position, height: tl.constexpr, width: tl.constexpr):
    """Image, line and column of positions."""
    return position // (height * width), position // width % height, position % width


@triton.jit
def _relu(values):
    return tl.where(values < 0, 0.0, values)


@triton.jit
def _normalisation(
    partial, kept, weights, moved, at, stat, count, share, momentum, epsilon,
    channels: tl.constexpr, programs: tl.constexpr,
):  # fmt: skip
    """Mean, factor and shift of a batch normalisation, from the statistics of each program.

    The first program keeps mean and inverse deviation, and writes how far statistics move down.
    """
    channel, program = tl.arange(0, channels), tl.arange(0, programs)[:, None]
    each = program * channels + channel[None, :]
    size = tl.minimum(tl.maximum(count - program * share, 0), share).to(tl.float32)
    first = tl.load(partial + channel)  # a number near the mean, so that nothing cancels
    off = tl.load(partial + each) - first[None, :]
    squares = tl.load(partial + programs * channels + each)
    shift = tl.sum(size * off, axis=0) / count
    variance = _relu(tl.sum(squares + size * off * off, axis=0) / count - shift * shift)
    mean, inverse = first + shift, 1.0 / tl.sqrt(variance + epsilon)
    if tl.program_id(0) == 0:
        tl.store(kept + channel, mean)
        tl.store(kept + channels + channel, inverse)
        running = weights + stat + channel
        unbiased = variance * (count / (count - 1.0))
        tl.store(moved + channel, momentum * (tl.load(running) - mean))
        tl.store(moved + channels + channel, momentum * (tl.load(running + channels) - unbiased))
    factor = tl.load(weights + at + channel) * inverse
    return mean, factor, tl.load(weights + at + channels + channel)


@triton.jit
def _statistics(values, position, start, begin, count, mean, squares, block: tl.constexpr):
    """Mean and sum of squared deviations of a program, with those of one more block."""
    known = (position < count)[:, None]
    earlier = (start - begin).to(tl.float32)
    here = tl.minimum(count - start, block).to(tl.float32)
    its_mean = tl.sum(tl.where(known, values, 0.0), axis=0) / here
    off = tl.where(known, values - its_mean[None, :], 0.0)
    step, share = its_mean - mean, here / (earlier + here)
    squares += tl.sum(off * off, axis=0) + step * step * (earlier * share)
    return mean + step * share, squares


@triton.jit
def _patches(
    images, position, count, height: tl.constexpr, width: tl.constexpr, patch_size: tl.constexpr
):
    """The 27 inputs of the first convolution at each position; images have their channels first."""
    image, y, x = _place(position, height, width)
    number = tl.arange(0, patch_size)[None, :]
    y, x = y[:, None] + number // 3 % 3 - 1, x[:, None] + number % 3 - 1
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    inside = inside & (position < count)[:, None] & (number < 27)
    at = ((image[:, None] * 3 + number // 9) * height + y) * width + x
    return tl.load(images + at, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["count"])
def convolve_images(
    images, packed, outputs, partial, count,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    patch_size: tl.constexpr, programs: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The first convolution, with statistics of its outputs."""
    channel, number = tl.arange(0, channels), tl.arange(0, patch_size)
    wanted = (number < 27)[:, None]
    weight = tl.load(packed + channel[None, :] * 27 + number[:, None], mask=wanted, other=0.0)
    share = _share(count, programs, block)
    begin = tl.program_id(0) * share
    mean, squares = tl.zeros((channels,), tl.float32), tl.zeros((channels,), tl.float32)
    for start in range(begin, tl.minimum(begin + share, count), block):
        position = start + tl.arange(0, block)
        patch = _patches(images, position, count, height, width, patch_size).to(weight.dtype)
        found = tl.dot(patch, weight, input_precision="tf32").to(outputs.dtype.element_ty)
        at = position[:, None] * channels + channel[None, :]
        tl.store(outputs + at, found, mask=(position < count)[:, None])
        found = found.to(tl.float32)
        mean, squares = _statistics(found, position, start, begin, count, mean, squares, block)
    each = tl.program_id(0) * channels + channel
    tl.store(partial + each, mean)
    tl.store(partial + programs * channels + each, squares)


@triton.jit
def _inputs_of_tap(
    inputs, position, count, tap, channel, mean, factor, shift,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    stride: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    """What a tap sees at each position of the outputs; if `normed`, normalised and past a ReLU."""
    image, y, x = _place(position, (height - 1) // stride + 1, (width - 1) // stride + 1)
    y, x = y * stride + tap // 3 - 1, x * stride + tap % 3 - 1
    inside = ((position < count) & (y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None]
    at = ((image * height + y) * width + x)[:, None] * channels + channel[None, :]
    found = tl.load(inputs + at, mask=inside, other=0.0)
    if normed:
        normal = (found.to(tl.float32) - mean[None, :]) * factor[None, :] + shift[None, :]
        found = tl.where(inside, _relu(normal), 0.0).to(found.dtype)
    return found


@triton.jit(do_not_specialize=["at", "stat", "count"])
def convolve(
    inputs, packed, outputs, partial, partial_in, kept, weights, moved,
    at, stat, count, momentum, epsilon,
    height: tl.constexpr, width: tl.constexpr, before: tl.constexpr, after: tl.constexpr,
    stride: tl.constexpr, normed: tl.constexpr, programs: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A convolution with statistics of its outputs; if `normed`, it normalises its inputs first."""
    channel_in, channel = tl.arange(0, before), tl.arange(0, after)
    share = _share(count, programs, block)
    begin = tl.program_id(0) * share
    nothing = tl.zeros((before,), tl.float32)
    mean_in, factor, shift = nothing, nothing, nothing
    if normed:  # never where the stride is 2, so there are as many positions
        mean_in, factor, shift = _normalisation(
            partial_in, kept, weights, moved, at, stat, count, share, momentum, epsilon,
            before, programs,
        )  # fmt: skip
    mean, squares = tl.zeros((after,), tl.float32), tl.zeros((after,), tl.float32)
    for start in range(begin, tl.minimum(begin + share, count), block):
        position = start + tl.arange(0, block)
        found = tl.zeros((block, after), tl.float32)
        for tap in range(9):
            seen = _inputs_of_tap(
                inputs, position, count, tap, channel_in, mean_in, factor, shift,
                height, width, before, stride, normed,
            )  # fmt: skip
            place = (tap * after + channel[None, :]) * before + channel_in[:, None]
            found = tl.dot(seen, tl.load(packed + place), found, input_precision="tf32")
        found = found.to(outputs.dtype.element_ty)
        place = position[:, None] * after + channel[None, :]
        tl.store(outputs + place, found, mask=(position < count)[:, None])
        found = found.to(tl.float32)
        mean, squares = _statistics(found, position, start, begin, count, mean, squares, block)
    each = tl.program_id(0) * after + channel
    tl.store(partial + each, mean)
    tl.store(partial + programs * after + each, squares)


@triton.jit(do_not_specialize=["at", "stat", "count"])
def normalise(
    outputs, partial, kept, weights, moved, inputs, activations,
    at, stat, count, momentum, epsilon,
    height: tl.constexpr, width: tl.constexpr, before: tl.constexpr, channels: tl.constexpr,
    stride: tl.constexpr, shortcut: tl.constexpr, programs: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A convolution's outputs, normalised, with a block's inputs added if `shortcut`, and a ReLU.

    Height and width are those of the block's inputs.
    """
    share, channel = _share(count, programs, block), tl.arange(0, channels)[None, :]
    mean, factor, shift = _normalisation(
        partial, kept, weights, moved, at, stat, count, share, momentum, epsilon, channels, programs
    )
    begin = tl.program_id(0) * share
    for start in range(begin, tl.minimum(begin + share, count), block):
        position = start + tl.arange(0, block)
        known, place = (position < count)[:, None], position[:, None] * channels + channel
        found = tl.load(outputs + place, mask=known, other=0.0).to(tl.float32)
        found = (found - mean[None, :]) * factor[None, :] + shift[None, :]
        if shortcut:
            image, y, x = _place(position, (height - 1) // stride + 1, (width - 1) // stride + 1)
            its = channel - (channels - before) // 2  # the others are filled with zeros
            from_ = ((image * height + y * stride) * width + x * stride)[:, None] * before + its
            there = known & (its >= 0) & (its < before)
            found += tl.load(inputs + from_, mask=there, other=0.0).to(tl.float32)
        found = _relu(found).to(activations.dtype.element_ty)
        tl.store(activations + place, found, mask=known)
