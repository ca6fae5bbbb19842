"""The compiled passes over vectors behind `kernels.cpu_clipping`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from llvmlite import ir

from secureafl.kernels.llvm import DOUBLE, FLOAT, INT, Emitter, floats, function, machine_code

LANES = 4  # of a register of floats
PRODUCTS = 4  # in a pass over uploads |g|^2, |a|^2, a'c and |c|^2, where a = g - c
COMPARED = 7  # in a pass over records, of a move s, a change y, an upload u and the last one p:
# s's, y'y, s'y, u'u, p'p, s'p and y'p
SKETCHES = 3  # of the upload g, of the centre c and of the model under the upload
_ARRAY, _EXACT = FLOAT.as_pointer(), DOUBLE.as_pointer()
_BYTE, _PLACE = ir.IntType(8), ir.IntType(32)
_FUSED = ("contract",)  # a product and a sum may be rounded once


class _Given(NamedTuple):
    """Where a pass reads and writes."""

    vectors: list[Any]  # upload, centre, base
    signs: Any
    sketches: list[Any]


@functools.cache
def sketch_pass() -> Any:
    """A function that sketches three vectors at once and forms the inner products of two.

    It covers a range of rows of the sketch (`linalg.sketch`); every row is read from its rotation
    on, and then from its start. A block of rows has sketches and sums of its own.
    """
    order, signs = _PLACE.as_pointer(), _BYTE.as_pointer()
    kinds = [_ARRAY] * 3 + [order, signs, _ARRAY, _EXACT, INT, INT, INT, INT, INT]
    module, arguments, emit = function(kinds)
    upload, centre, base, order, signs, sketches, sums, width, *arguments = arguments
    size, block, first, last = arguments
    builder, vectors = emit.builder, [upload, centre, base]
    totals, lanes = _nothing_yet(emit, PRODUCTS)
    with emit.loop(first, last) as row:
        start, place = builder.mul(row, width), builder.sdiv(row, block)
        rest = builder.sub(size, start)
        here = builder.select(builder.icmp_signed("<", rest, width), rest, width)
        rotated = builder.sext(builder.load(emit.at(order, start)), INT)
        rotated = builder.sub(rotated, start)
        room = emit.at(sketches, builder.mul(place, builder.mul(width, INT(SKETCHES))))
        rows = [emit.at(room, builder.mul(width, INT(k))) for k in range(SKETCHES)]
        begins = builder.icmp_signed("==", builder.srem(row, block), INT(0))
        with builder.if_then(begins), emit.loop(0, builder.mul(width, INT(SKETCHES))) as k:
            emit.store(FLOAT(0.0), room, k)
        before = builder.sub(here, rotated)
        for begin, source, count in (
            (INT(0), rotated, before),
            (before, INT(0), rotated),
        ):
            given = _Given(
                [emit.at(v, builder.add(start, source)) for v in vectors],
                emit.at(signs, builder.add(start, begin)),
                [emit.at(r, begin) for r in rows],
            )
            _in_lanes(
                emit, count, lambda k, kind, given=given: _add(emit, k, kind, given, totals, lanes)
            )
        _write_sums(emit, emit.at(sums, builder.mul(place, INT(PRODUCTS))), totals, lanes)
    builder.ret_void()
    return machine_code(module)


def _in_lanes(emit: Emitter, count: Any, body: Callable[[Any, Any], None]) -> None:
    """Call `body` with a place and a kind: as many registers as fit, then single floats."""
    builder, kind = emit.builder, floats(LANES)
    full = builder.sdiv(count, INT(LANES))
    with emit.loop(0, full) as k:
        body(builder.mul(k, INT(LANES)), kind)
    with emit.loop(builder.mul(full, INT(LANES)), count) as k:
        body(k, FLOAT)


def _add(
    emit: Emitter, k: Any, kind: Any, given: _Given, totals: list[Any], lanes: list[Any]
) -> None:
    """Add what lies at place k to the sketches and to the sums."""
    builder, single = emit.builder, kind is FLOAT
    signs = emit.load(given.signs, k, _BYTE if single else ir.VectorType(_BYTE, LANES))
    signs.align = 1
    signs = builder.sitofp(signs, kind)
    values = [emit.load(vector, k, kind) for vector in given.vectors]
    for value, sketch in zip(values, given.sketches, strict=True):
        signed = builder.fmul(signs, value, flags=_FUSED)
        emit.store(builder.fadd(signed, emit.load(sketch, k, kind), flags=_FUSED), sketch, k)
    exact = DOUBLE if single else ir.VectorType(DOUBLE, LANES)
    g, c = (builder.fpext(value, exact) for value in values[:2])
    a = builder.fsub(g, c)
    _add_products(emit, totals if single else lanes, ((g, g), (a, a), (a, c), (c, c)))


def _nothing_yet(emit: Emitter, count: int) -> tuple[list[Any], list[Any]]:
    """Room for sums of single products and for those of registers of them, all 0."""
    totals, lanes = (
        [emit.builder.alloca(kind) for _ in range(count)]
        for kind in (DOUBLE, ir.VectorType(DOUBLE, LANES))
    )
    for place in (*totals, *lanes):
        emit.builder.store(ir.Constant(place.type.pointee, None), place)
    return totals, lanes


def _add_products(emit: Emitter, sums: list[Any], pairs: Iterable[tuple[Any, Any]]) -> None:
    builder = emit.builder
    for total, (one, other) in zip(sums, pairs, strict=True):
        product = builder.fmul(one, other, flags=_FUSED)
        builder.store(builder.fadd(product, builder.load(total), flags=_FUSED), total)


def _write_sums(emit: Emitter, sums: Any, totals: list[Any], lanes: list[Any]) -> None:
    """Add the sums to those there, and begin anew."""
    builder = emit.builder
    for k, (total, lane) in enumerate(zip(totals, lanes, strict=True)):
        found, register = builder.load(total), builder.load(lane)
        for place in range(LANES):
            found = builder.fadd(found, builder.extract_element(register, _PLACE(place)))
        place = emit.at(sums, k)
        builder.store(builder.fadd(found, builder.load(place)), place)
        for kept in (total, lane):
            builder.store(ir.Constant(kept.type.pointee, None), kept)


@functools.cache
def record_pass() -> Any:
    """A function that puts the sketches of an upload into its client's rows.

    The upload is clipped before, to a share of its distance from the centre. Of the model's move,
    of the upload's change, of the upload and of the last one it gives inner products.
    """
    kinds = [_ARRAY] * 6 + [_EXACT, DOUBLE, FLOAT, INT]
    module, arguments, emit = function(kinds)
    upload, centre, model, last, base, history, sums, share, before, width = arguments
    builder = emit.builder
    totals, lanes = _nothing_yet(emit, COMPARED)
    rest = builder.fsub(DOUBLE(1.0), share)

    def body(k: Any, kind: Any) -> None:
        exact = DOUBLE if kind is FLOAT else ir.VectorType(DOUBLE, LANES)
        near, far, kept = (
            x if kind is FLOAT else emit.spread(x, LANES) for x in (rest, share, before)
        )
        g, c = (builder.fpext(emit.load(vector, k, kind), exact) for vector in (upload, centre))
        clipped = builder.fadd(builder.fmul(near, c), builder.fmul(far, g))
        clipped, now = builder.fptrunc(clipped, kind), emit.load(model, k, kind)
        moved = builder.fpext(builder.fsub(now, emit.load(base, k, kind)), exact)
        new, own = (builder.fpext(value, exact) for value in (clipped, emit.load(last, k, kind)))
        changed = builder.fsub(new, own)
        pairs = ((moved, moved), (changed, changed), (moved, changed), (new, new))
        pairs += ((own, own), (moved, own), (changed, own))
        _add_products(emit, totals if kind is FLOAT else lanes, pairs)
        way = builder.fsub(emit.load(history, k, kind), clipped)
        emit.store(builder.fadd(clipped, builder.fmul(kept, way)), history, k)
        emit.store(clipped, last, k)
        emit.store(now, base, k)

    _in_lanes(emit, width, body)
    _write_sums(emit, sums, totals, lanes)
    builder.ret_void()
    return machine_code(module)


@functools.cache
def step_pass() -> Any:
    """A function that forms the direction of a step, and the next centre in place of this one."""
    kinds = [_ARRAY] * 3 + [DOUBLE] * 4 + [INT] * 4
    module, arguments, emit = function(kinds)
    centre, upload, direction, of_centre, of_upload, kept, towards, *arguments = arguments
    size, width, first, last = arguments
    builder = emit.builder
    start, end = (builder.mul(place, width) for place in (first, last))
    end = builder.select(builder.icmp_signed("<", size, end), size, end)
    here = [emit.at(vector, start) for vector in (centre, upload, direction)]

    def body(k: Any, kind: Any) -> None:
        exact = DOUBLE if kind is FLOAT else ir.VectorType(DOUBLE, LANES)
        c, g = (builder.fpext(emit.load(vector, k, kind), exact) for vector in here[:2])
        for shares, out in (((of_centre, of_upload), here[2]), ((kept, towards), here[0])):
            one, other = (s if kind is FLOAT else emit.spread(s, LANES) for s in shares)
            product = builder.fmul(one, c, flags=_FUSED)
            total = builder.fadd(product, builder.fmul(other, g, flags=_FUSED), flags=_FUSED)
            emit.store(builder.fptrunc(total, kind), out, k)

    _in_lanes(emit, builder.sub(end, start), body)
    builder.ret_void()
    return machine_code(module)
