"""The compiled passes over images behind `kernels.cpu_cnn`: two convolutions, forth and back.

Channels lie innermost and fill registers; every sum is over the same numbers in the same order
whatever a register holds, so processors differ in speed and not in bits. Of four places that are
pooled only the largest is written, with where it was: the others get no gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

from secureafl.kernels.cnn_sizes import CHANNELS_1, CHANNELS_2, SIDE
from secureafl.kernels.llvm import FLOAT, INT, Emitter, floats, function, machine_code

SIDE_1, SIDE_2 = 12, 5  # after each pooling; a 13th line after the first reaches nothing
AREA_1, AREA_2 = SIDE_1**2, SIDE_2**2
WIDTH_1, WIDTH_2 = 32, 64  # room for the channels of a place
PART_1, PART_2 = 10 * WIDTH_1, CHANNELS_2 * 9 * WIDTH_1  # weight gradients, the first's with biases
_ARRAY, _INT32 = FLOAT.as_pointer(), ir.IntType(32)
_CHOICES = _INT32.as_pointer()
_FUSED = ("contract",)  # a product and a sum are rounded once
_TAPS = [(dy, dx) for dy in range(3) for dx in range(3)]
_POOLED = [(0, 0), (0, 1), (1, 0), (1, 1)]  # the four places, in the order of `max_pool2d`


class _Registers(NamedTuple):
    """What the processor has for vectors of floats."""

    lanes: int
    many: bool  # 32 of them instead of 16

    @property
    def sums(self) -> int:
        """How many registers of channels are worked on at a time, each with nine sums or four."""
        return 2 if self.many else 1


@functools.cache
def _registers() -> _Registers:
    features = llvm.get_host_cpu_features()
    if features.get("avx512vl"):
        return _Registers(16, many=True)
    if features.get("avx"):
        return _Registers(8, many=False)
    return _Registers(4, many=llvm.get_default_triple().startswith(("aarch64", "arm64")))


class _Code(Emitter):
    """An emitter of vectors of channels."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        super().__init__(builder)
        self.lanes = _registers().lanes
        self.kind = floats(self.lanes)

    def groups(self, channels: int, size: int) -> Iterator[list[int]]:
        """Where registers begin that hold so many channels together, `size` at a time."""
        starts = [*range(0, channels, self.lanes)]
        for first in range(0, len(starts), size):
            yield starts[first : first + size]

    def sum_up(self, count: int) -> list[Any]:
        """So many sums, all 0, kept in registers where there are enough."""
        with self.builder.goto_entry_block():  # elsewhere they would lie in memory
            sums = [self.builder.alloca(self.kind) for _ in range(count)]
        for total in sums:
            self.builder.store(ir.Constant(self.kind, None), total)
        return sums

    def add_product(self, one: Any, other: Any, total: Any) -> None:
        """Add to a sum."""
        self.builder.store(self.fused(one, other, self.builder.load(total)), total)

    def fused(self, one: Any, other: Any, total: Any) -> Any:
        """One times other plus total, as the layers compute it: what is not a number stays so."""
        product = self.builder.fmul(one, other, flags=_FUSED)
        return self.builder.fadd(product, total, flags=_FUSED)

    def everywhere(self, array: Any, offset: Any) -> Any:
        """One number of an array in every lane."""
        return self.spread(self.load(array, offset), self.lanes)

    def sum(self, *numbers: Any) -> Any:
        """Add whole numbers, of the program or of its maker."""
        fixed = sum(number for number in numbers if isinstance(number, int))
        others = [number for number in numbers if not isinstance(number, int)]
        return functools.reduce(self.builder.add, [*others, INT(fixed)])

    def times(self, number: Any, factor: int) -> Any:
        """A whole number multiplied by one that is known."""
        return self.builder.mul(number, INT(factor))

    def choices(self, values: Sequence[int]) -> list[Any]:
        """For each of some whole numbers a register that is full of it."""
        kind = ir.VectorType(_INT32, self.lanes)
        return [ir.Constant(kind, [value] * self.lanes) for value in values]

    def relu_pool(self, four: Sequence[Any], choices: Sequence[Any]) -> tuple[Any, Any]:
        """The largest of four, if above 0, and the choice that goes with it."""
        builder, best, chosen = self.builder, four[0], choices[0]
        for value, choice in zip(four[1:], choices[1:], strict=True):
            larger = builder.fcmp_ordered(">", value, best)
            taken = builder.or_(larger, builder.fcmp_unordered("uno", value, value))
            best = builder.select(taken, value, best)
            chosen = builder.select(taken, choice, chosen)
        zero = ir.Constant(self.kind, None)
        return builder.select(builder.fcmp_ordered("<=", best, zero), zero, best), chosen


@functools.cache
def forward_pass() -> Any:
    """A function that computes both convolutions of a range of images.

    A choice of the first layer is the number of the place, one of the second where the chosen place
    has its upper left input.
    """
    kinds = [_ARRAY] * 5 + [_ARRAY, _CHOICES, _ARRAY, _CHOICES] + [INT] * 4
    module, arguments, emit = function(kinds)
    inputs, weights_1, biases_1, weights_2, biases_2, *arguments = arguments
    pooled_1, choices_1, pooled_2, choices_2, _, _, first, last = arguments
    code = _Code(emit.builder)
    with code.loop(first, last) as image:
        own = [
            code.at(array, code.times(image, size))
            for array, size in (
                (inputs, SIDE**2),
                *((pooled_1, AREA_1 * WIDTH_1), (choices_1, AREA_1 * WIDTH_1)),
                *((pooled_2, AREA_2 * WIDTH_2), (choices_2, AREA_2 * WIDTH_2)),
            )
        ]
        _first_convolution(code, own[0], weights_1, biases_1, own[1:3])
        _second_convolution(code, own[1], weights_2, biases_2, own[3:])
    code.builder.ret_void()
    return machine_code(module)


def _first_convolution(
    code: _Code, image: Any, weights: Any, biases: Any, out: Sequence[Any]
) -> None:
    numbers = code.choices(range(4))
    for y, x in _places(code, SIDE_1):
        patch = _patch(code, image, SIDE, 1, y, x)
        place = code.times(code.sum(code.times(y, SIDE_1), x), WIDTH_1)
        for (start,) in code.groups(CHANNELS_1, 1):
            four = [code.load(biases, start, code.kind)] * 4
            for tap, (dy, dx) in enumerate(_TAPS):
                weight = code.load(weights, tap * WIDTH_1 + start, code.kind)
                for k, (py, px) in enumerate(_POOLED):
                    four[k] = code.fused(patch[py + dy][px + dx], weight, four[k])
            _write_pooled(code, out, code.sum(place, start), four, numbers)


def _second_convolution(
    code: _Code, before: Any, weights: Any, biases: Any, out: Sequence[Any]
) -> None:
    inner = code.choices([(py * SIDE_1 + px) * WIDTH_1 for py, px in _POOLED])
    for starts in code.groups(CHANNELS_2, 2 * _registers().sums):
        for y, x in _places(code, SIDE_2):
            sums = [code.sum_up(4) for _ in starts]
            for start, four in zip(starts, sums, strict=True):
                for total in four:
                    code.builder.store(code.load(biases, start, code.kind), total)
            with code.loop(0, CHANNELS_1) as channel:
                patch = _patch(code, code.at(before, channel), SIDE_1, WIDTH_1, y, x)
                for tap, (dy, dx) in enumerate(_TAPS):
                    row = code.times(code.sum(channel, tap * CHANNELS_1), WIDTH_2)
                    for start, four in zip(starts, sums, strict=True):
                        weight = code.load(weights, code.sum(row, start), code.kind)
                        for total, (py, px) in zip(four, _POOLED, strict=True):
                            code.add_product(patch[py + dy][px + dx], weight, total)
            corner = code.times(code.sum(code.times(y, 2 * SIDE_1), code.times(x, 2)), WIDTH_1)
            corner = code.spread(code.builder.trunc(corner, _INT32), code.lanes)
            places = [code.builder.add(corner, one) for one in inner]
            place = code.times(code.sum(code.times(y, SIDE_2), x), WIDTH_2)
            for start, four in zip(starts, sums, strict=True):
                values = [code.builder.load(total) for total in four]
                _write_pooled(code, out, code.sum(place, start), values, places)


def _places(code: _Code, side: int) -> Iterator[tuple[Any, Any]]:
    """Loop over the places of a square; what is emitted meanwhile is the body."""
    with code.loop(0, side) as y, code.loop(0, side) as x:
        yield y, x


def _patch(code: _Code, image: Any, side: int, step: int, y: Any, x: Any) -> list[list[Any]]:
    """The 4 x 4 numbers under four places that are pooled, each in every lane."""
    corner = code.sum(code.times(y, 2 * side * step), code.times(x, 2 * step))
    return [
        [code.everywhere(image, code.sum(corner, (dy * side + dx) * step)) for dx in range(4)]
        for dy in range(4)
    ]


def _write_pooled(
    code: _Code, out: Sequence[Any], place: Any, four: Sequence[Any], choices: Sequence[Any]
) -> None:
    for value, array in zip(code.relu_pool(four, choices), out, strict=True):
        code.store(value, array, place)


@functools.cache
def backward_pass() -> Any:
    """A function that adds weight gradients of a range of images to the part of their block.

    It is given the gradient after the second pooling. What the first layer's pooled values have as
    gradient is kept for an image only.
    """
    kinds = [_ARRAY, _ARRAY, _CHOICES, _ARRAY, _CHOICES, _ARRAY, _ARRAY] + [INT] * 4
    module, arguments, emit = function(kinds)
    inputs, pooled_1, choices_1, gradient_2, choices_2, *arguments = arguments
    weights_2, parts, _, block, first, last = arguments
    code = _Code(emit.builder)
    gradient_1 = code.local(AREA_1 * WIDTH_1)
    with code.loop(first, last) as image:
        place = code.builder.sdiv(image, block)
        part = code.at(parts, code.times(place, PART_1 + PART_2))
        own = code.at(inputs, code.times(image, SIDE**2))
        before, chosen = (
            code.at(array, code.times(image, AREA_1 * WIDTH_1)) for array in (pooled_1, choices_1)
        )
        given = [
            code.at(array, code.times(image, AREA_2 * WIDTH_2)) for array in (gradient_2, choices_2)
        ]
        _weight_gradient_2(code, before, given, code.at(part, PART_1))
        _input_gradient_2(code, weights_2, given, gradient_1)
        _weight_gradient_1(code, own, before, chosen, gradient_1, part)
    code.builder.ret_void()
    return machine_code(module)


def _chosen_place(code: _Code, given: Sequence[Any], at: Any) -> tuple[Any, Any]:
    """The gradient of a place after the second pooling, in every lane, and where its inputs are."""
    gradient, choices = given
    offset = code.builder.sext(code.builder.load(code.at(choices, at)), INT)
    return code.everywhere(gradient, at), offset


def _weight_gradient_2(code: _Code, before: Any, given: Sequence[Any], part: Any) -> None:
    with code.loop(0, CHANNELS_2) as channel:
        for starts in code.groups(CHANNELS_1, _registers().sums):
            sums = [code.sum_up(len(starts)) for _ in _TAPS]
            with code.loop(0, AREA_2) as place:
                at = code.sum(code.times(place, WIDTH_2), channel)
                gradient, offset = _chosen_place(code, given, at)
                for totals, (dy, dx) in zip(sums, _TAPS, strict=True):
                    for total, start in zip(totals, starts, strict=True):
                        there = code.sum(offset, (dy * SIDE_1 + dx) * WIDTH_1 + start)
                        value = code.load(before, there, code.kind)
                        code.add_product(gradient, value, total)
            for tap, totals in enumerate(sums):
                for total, start in zip(totals, starts, strict=True):
                    row = code.sum(code.times(channel, 9 * WIDTH_1), tap * WIDTH_1 + start)
                    _add(code, part, row, code.builder.load(total))


def _input_gradient_2(code: _Code, weights: Any, given: Sequence[Any], out: Any) -> None:
    with code.loop(0, AREA_1 * WIDTH_1 // code.lanes) as k:
        code.store(ir.Constant(code.kind, None), out, code.times(k, code.lanes))
    with code.loop(0, AREA_2) as place, code.loop(0, CHANNELS_2) as channel:
        at = code.sum(code.times(place, WIDTH_2), channel)
        gradient, offset = _chosen_place(code, given, at)
        own = code.times(channel, 9 * WIDTH_1)
        for tap, (dy, dx) in enumerate(_TAPS):
            for (start,) in code.groups(CHANNELS_1, 1):
                weight = code.load(weights, code.sum(own, tap * WIDTH_1 + start), code.kind)
                there = code.sum(offset, (dy * SIDE_1 + dx) * WIDTH_1 + start)
                total = code.load(out, there, code.kind)
                code.store(code.fused(gradient, weight, total), out, there)


def _weight_gradient_1(
    code: _Code, image: Any, pooled: Any, chosen: Any, gradient: Any, part: Any
) -> None:
    """Nine weights and the bias; a lane's place is one of four, the others count as 0."""
    builder, zero = code.builder, ir.Constant(code.kind, None)
    whole = ir.VectorType(_INT32, code.lanes)
    for (start,) in code.groups(CHANNELS_1, 1):
        sums = code.sum_up(10)
        for y, x in _places(code, SIDE_1):
            patch = _patch(code, image, SIDE, 1, y, x)
            at = code.sum(code.times(code.sum(code.times(y, SIDE_1), x), WIDTH_1), start)
            off = builder.fcmp_ordered("==", code.load(pooled, at, code.kind), zero)
            own = builder.select(off, zero, code.load(gradient, at, code.kind))
            which = code.load(chosen, at, whole)
            numbers = code.choices(range(4))
            four = [
                builder.select(builder.icmp_signed("==", which, number), own, zero)
                for number in numbers
            ]
            for total, (dy, dx) in zip(sums[:9], _TAPS, strict=True):
                for value, (py, px) in zip(four, _POOLED, strict=True):
                    code.add_product(value, patch[py + dy][px + dx], total)
            builder.store(builder.fadd(builder.load(sums[9]), own), sums[9])
        for row, total in enumerate(sums):
            _add(code, part, row * WIDTH_1 + start, builder.load(total))


def _add(code: _Code, array: Any, offset: Any, value: Any) -> None:
    total = code.load(array, offset, code.kind)
    code.store(code.builder.fadd(total, value), array, offset)
