"""The compiled functions behind `kernels.cpu`, which work tile by tile."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from secureafl.kernels.llvm import (
    DOUBLE,
    FLOAT,
    INT,
    Emitter,
    floats,
    function,
    machine_code,
)
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH
from secureafl.linalg.sorting_network import sorting_network

LANES = 4  # floats sorted at a time: half of fifty clients then fits into thirty-two registers
IN_REGISTERS = 64  # clients up to which the median needs no table
_AHEAD, _NEAR = 8, 4  # tiles, and clients of a tile, that memory is asked for in advance
_FLUSH = 32  # tiles whose products are added up in float32 before they go into float64
_LANE, _TILE = floats(LANES), floats(WIDTH)
Rows = tuple[tuple[int, str], ...]  # places of a client to write, and which vector goes there
_ARRAY, _EXACT, _INDEX = FLOAT.as_pointer(), DOUBLE.as_pointer(), INT.as_pointer()


@functools.cache
def order_pass(clients: int, slots: int, in_registers: bool, new: Rows) -> Any:
    """A function that stores a client's new rows, combines, selects and forms inner products.

    It covers a range of tiles. The inner products of a tile, which is still in the cache, are
    formed while the next one is read, so that arithmetic and memory work at the same time.
    """
    kinds = [_ARRAY] * 7 + [_EXACT, _EXACT, _INDEX, _ARRAY, INT, _INDEX, INT]
    module, arguments, emit = function([*kinds, INT, INT, FLOAT, FLOAT, *[INT] * 5])
    vectors, shares, model, upload, base, direction, scratch, along, inner, *arguments = arguments
    absent, fill, gone, network, pairs, low, high, below, above, *arguments = arguments
    client, size, block, first, last = arguments
    builder, padded, tile_size = emit.builder, clients + clients % 2, clients * slots * WIDTH
    given, sums = _Columns(emit, [model, upload, base], size), emit.at(scratch, padded * WIDTH)
    mine = builder.mul(client, INT(slots * WIDTH))
    early = 5 * slots // 8  # rows per client of the next tile asked for while combining this one
    columns = clients * slots + LANES  # of sums: with each vector; `_products_of_step`
    with emit.loop(0, columns) as k:
        emit.store(FLOAT(0.0), sums, k)

    def tile(t: Any) -> Any:
        return emit.at(vectors, builder.mul(t, INT(tile_size)))

    def found(t: Any) -> Any:
        return emit.at(direction, builder.mul(t, INT(WIDTH)))

    with emit.loop(first, last) as t:
        here = given.at(t)
        row = _block_row(emit, inner, t, block, padded_pairs(new, slots))
        _store_rows(emit, emit.at(tile(t), mine), here, new, slots, row)
        with builder.if_else(builder.icmp_signed("==", t, first)) as (alone, behind):
            with alone, emit.loop(0, clients) as i:
                _combine(emit, i, tile(t), shares, here[0], scratch, slots)
            with behind:
                before = builder.sub(t, INT(1))
                lanes = _lanes_of(emit, found(before), 0)
                _products_of_step(emit, lanes, given.at(before), emit.at(sums, clients * slots))
                with emit.loop(0, clients) as i:
                    _combine(emit, i, tile(t), shares, here[0], scratch, slots)
                    _fetch(emit, tile(t), builder.add(i, INT(_NEAR)), slots, level=1)
                    _products(emit, i, tile(before), lanes, sums, slots)
                    _fetch(emit, tile(builder.add(t, INT(1))), i, early, level=2)
        with emit.loop(0, gone) as k:  # absent clients become lowest and highest values
            value = emit.spread(emit.load(fill, k), WIDTH)
            emit.store(value, scratch, builder.mul(emit.load(absent, k, INT), INT(WIDTH)))
        if in_registers:
            rest = emit.at(tile(builder.add(t, INT(1))), clients * early * WIDTH)
            late = clients * (slots - early)
            _middle(emit, scratch, padded, (below, above), found(t), (rest, late))
        else:
            _sort_by_table(emit, scratch, network, pairs)
            _mean_of_rows(emit, scratch, low, high, below, found(t))
        within = builder.and_(builder.srem(t, block), INT(_FLUSH - 1))
        due = builder.icmp_signed("==", within, INT(0))
        due = builder.and_(due, builder.icmp_signed(">", t, first))
        with builder.if_then(due):
            behind = builder.sub(t, INT(1))  # whose products were the last to be added
            _flush(emit, sums, _block_row(emit, along, behind, block, columns), columns)
    end = builder.sub(last, INT(1))
    lanes = _lanes_of(emit, found(end), 0)
    _products_of_step(emit, lanes, given.at(end), emit.at(sums, clients * slots))
    with emit.loop(0, clients) as i:
        _products(emit, i, tile(end), lanes, sums, slots)
    _flush(emit, sums, _block_row(emit, along, end, block, columns), columns)
    builder.ret_void()
    return machine_code(module)


def _combine(
    emit: Emitter, i: Any, tile: Any, shares: Any, model: Any, out: Any, slots: int
) -> None:
    """Form client i's combination in this tile."""
    builder = emit.builder
    row = emit.at(tile, builder.mul(i, INT(slots * WIDTH)))
    mine = emit.at(shares, builder.mul(i, INT(slots)))
    share = [emit.spread(emit.load(mine, s), WIDTH) for s in range(slots)]
    total = builder.fmul(share[GRADIENT], emit.load(row, GRADIENT * WIDTH, _TILE))
    drift = builder.fsub(emit.load(model, 0, _TILE), emit.load(row, BASE * WIDTH, _TILE))
    total = emit.multiply_add(share[BASE], drift, total)
    for s in range(OWN, slots):
        total = emit.multiply_add(share[s], emit.load(row, s * WIDTH, _TILE), total)
    emit.store(total, out, builder.mul(i, INT(WIDTH)))


def _products(emit: Emitter, i: Any, tile: Any, lanes: list[Any], sums: Any, slots: int) -> None:
    """Add client i's inner products with a direction, four vectors to a register."""
    builder = emit.builder
    row = emit.at(tile, builder.mul(i, INT(slots * WIDTH)))
    out = emit.at(sums, builder.mul(i, INT(slots)))
    nothing = ir.Constant(_LANE, [0.0] * LANES)
    found = [nothing]  # of the upload, which is not needed
    found += [_dot(emit, _lanes_of(emit, row, s * WIDTH), lanes) for s in range(1, slots)]
    for start in range(0, slots, LANES):
        group = found[start : start + LANES]
        total = _four_sums(emit, group + [nothing] * (LANES - len(group)))
        for k in range(len(group) if len(group) < LANES else 0):
            one = builder.extract_element(total, ir.IntType(32)(k))
            emit.store(builder.fadd(one, emit.load(out, start + k)), out, start + k)
        if len(group) == LANES:
            emit.store(builder.fadd(total, emit.load(out, start, _LANE)), out, start)


def _products_of_step(emit: Emitter, lanes: list[Any], given: list[Any], out: Any) -> None:
    """Add the direction's products with the model and with itself; its distance from the upload."""
    model, upload = (_lanes_of(emit, columns, 0) for columns in given[:2])
    apart = [emit.builder.fsub(a, b) for a, b in zip(upload, lanes, strict=True)]
    dots = [_dot(emit, *pair) for pair in ((lanes, model), (lanes, lanes), (apart, apart))]
    total = _four_sums(emit, [*dots, ir.Constant(_LANE, [0.0] * LANES)])
    emit.store(emit.builder.fadd(total, emit.load(out, 0, _LANE)), out, 0)


def _lanes_of(emit: Emitter, array: Any, offset: int) -> list[Any]:
    return [emit.load(array, offset + k, _LANE) for k in range(0, WIDTH, LANES)]


def _dot(emit: Emitter, one: list[Any], other: list[Any]) -> Any:
    """Products of a tile's columns, summed into one register."""
    total = emit.builder.fmul(one[0], other[0])
    for a, b in zip(one[1:], other[1:], strict=True):
        total = emit.multiply_add(a, b, total)
    return total


def _four_sums(emit: Emitter, registers: list[Any]) -> Any:
    """The sum over each of four registers, in one."""
    a, b, c, d = registers
    return emit.pair_sums(emit.pair_sums(a, b), emit.pair_sums(c, d))


def _middle(
    emit: Emitter,
    values: Any,
    size: int,
    weights: tuple[Any, Any],
    out: Any,
    ahead: tuple[Any, int],
) -> None:
    """The two middle values of an even number of rows, each times its weight.

    Each half is sorted in registers. With one half reversed, the smaller values of each couple are
    the lower half of all, the larger ones the upper half: the middle lies between them.
    """
    builder, half, steps = emit.builder, size // 2, WIDTH // LANES
    with emit.loop(0, 2 * steps) as k:
        side, part = builder.udiv(k, INT(steps)), builder.urem(k, INT(steps))
        start = builder.add(builder.mul(side, INT(half * WIDTH)), builder.mul(part, INT(LANES)))
        rows = emit.at(values, start)
        _fetch(emit, ahead[0], k, -(-ahead[1] // (2 * steps)), level=2)
        found = [emit.load(rows, i * WIDTH, _LANE) for i in range(half)]
        for i, j in sorting_network(half).tolist():
            found[i], found[j] = emit.smaller(found[i], found[j]), emit.larger(found[i], found[j])
        for i, row in enumerate(found):
            emit.store(row, rows, i * WIDTH)
    with emit.loop(0, steps) as k:
        rows = emit.at(values, builder.mul(k, INT(LANES)))
        below = above = None
        for i in range(half):
            one = emit.load(rows, i * WIDTH, _LANE)
            other = emit.load(rows, (size - 1 - i) * WIDTH, _LANE)
            low, high = emit.smaller(one, other), emit.larger(one, other)
            below = low if below is None else emit.larger(below, low)
            above = high if above is None else emit.smaller(above, high)
        for_below, for_above = (emit.spread(weight, LANES) for weight in weights)
        middle = emit.multiply_add(for_above, above, builder.fmul(for_below, below))
        emit.store(middle, out, builder.mul(k, INT(LANES)))


def _sort_by_table(emit: Emitter, values: Any, network: Any, pairs: Any) -> None:
    builder = emit.builder
    with emit.loop(0, pairs) as k:
        place = builder.mul(k, INT(2))
        one, other = (
            builder.mul(emit.load(network, builder.add(place, INT(side)), INT), INT(WIDTH))
            for side in (0, 1)
        )
        a, b = emit.load(values, one, _TILE), emit.load(values, other, _TILE)
        emit.store(emit.smaller(a, b), values, one)
        emit.store(emit.larger(a, b), values, other)


def _mean_of_rows(emit: Emitter, values: Any, low: Any, high: Any, scale: Any, out: Any) -> None:
    """Mean of rows; each is scaled before it is added, so that sums do not overflow."""
    builder, share = emit.builder, emit.spread(scale, WIDTH)
    emit.store(ir.Constant(_TILE, [0.0] * WIDTH), out, 0)
    with emit.loop(low, builder.add(high, INT(1))) as i:
        row = emit.load(values, builder.mul(i, INT(WIDTH)), _TILE)
        emit.store(emit.multiply_add(share, row, emit.load(out, 0, _TILE)), out, 0)


class _Columns:
    """Vectors whose last tile may reach beyond their end; it is read from a padded copy."""

    def __init__(self, emit: Emitter, vectors: list[Any], size: Any) -> None:
        builder = emit.builder
        self.emit, self.vectors = emit, vectors
        self.whole = builder.sdiv(size, INT(WIDTH))
        self.copies = emit.local(WIDTH * len(vectors))
        start = builder.mul(self.whole, INT(WIDTH))
        for k, vector in enumerate(vectors):
            emit.store(ir.Constant(_TILE, [0.0] * WIDTH), self.copies, k * WIDTH)
            with emit.loop(start, size) as j:
                place = builder.add(builder.sub(j, start), INT(k * WIDTH))
                emit.store(emit.load(vector, j), self.copies, place)

    def at(self, t: Any) -> list[Any]:
        """Addresses of each vector's columns of tile t."""
        builder, emit = self.emit.builder, self.emit
        beyond = builder.icmp_signed("==", t, self.whole)
        here = builder.mul(t, INT(WIDTH))
        return [
            builder.select(beyond, emit.at(self.copies, k * WIDTH), emit.at(vector, here))
            for k, vector in enumerate(self.vectors)
        ]


def _block_row(emit: Emitter, sums: Any, t: Any, block: Any, count: int) -> Any:
    """The row of sums of the block of `block` tiles that holds tile t."""
    return emit.at(sums, emit.builder.mul(emit.builder.sdiv(t, block), INT(count)))


def _flush(emit: Emitter, sums: Any, along: Any, count: int) -> None:
    builder = emit.builder
    with emit.loop(0, count) as k:
        more = builder.fpext(emit.load(sums, k), DOUBLE)
        emit.store(builder.fadd(emit.load(along, k, DOUBLE), more), along, k)
        emit.store(FLOAT(0.0), sums, k)


@functools.cache
def add_up_pass() -> Any:
    """A function that adds the sums of all blocks to the first row."""
    module, arguments, emit = function([_EXACT, INT, INT])
    _add_up(emit, *arguments)
    emit.builder.ret_void()
    return machine_code(module)


def _add_up(emit: Emitter, sums: Any, columns: Any, blocks: Any) -> None:
    builder = emit.builder
    with emit.loop(1, blocks) as b:
        row = emit.at(sums, builder.mul(b, columns))
        with emit.loop(0, columns) as k:
            more = builder.fadd(emit.load(sums, k, DOUBLE), emit.load(row, k, DOUBLE))
            emit.store(more, sums, k)


@functools.cache
def store_products_pass(new: Rows, slots: int) -> Any:
    """A function that sums the products of `inner_pairs` and stores them in a client's tables."""
    module, arguments, emit = function([_EXACT] * 4 + [INT])
    sums, gram, along, squared, blocks = arguments
    _add_up(emit, sums, INT(padded_pairs(new, slots)), blocks)
    for place, (i, k) in enumerate(inner_pairs(new, slots)):
        total = emit.load(sums, place, DOUBLE)
        if i == slots:
            emit.store(total, squared, 0)
        elif k == slots:
            emit.store(total, along, i)
        else:
            emit.store(total, gram, i * slots + k)
            emit.store(total, gram, k * slots + i)
    emit.builder.ret_void()
    return machine_code(module)


@functools.cache
def secant_pass(clients: int, slots: int) -> Any:
    """A function that sums s's, s'y, y'y and g'g for an upload g and its client's last one."""
    module, arguments, emit = function([_ARRAY] * 3 + [_EXACT] + [INT] * 4)
    mine, upload, base, sums, size, block, first, last = arguments
    builder, given = emit.builder, _Columns(emit, [upload, base], size)
    with emit.loop(first, last) as t:
        own = emit.at(mine, builder.mul(t, INT(clients * slots * WIDTH)))
        _fetch(emit, emit.at(own, _AHEAD * clients * slots * WIDTH), INT(0), OWN, level=2)
        g, b = (_lanes_of(emit, columns, 0) for columns in given.at(t))
        step, change = _step_and_change(emit, own, g, b)
        dots = [_dot(emit, *pair) for pair in ((step, step), (step, change), (change, change))]
        four = _four_sums(emit, [*dots, _dot(emit, g, g)])
        _add_exactly(emit, four, _block_row(emit, sums, t, block, LANES), 0)
    builder.ret_void()
    return machine_code(module)


def _step_and_change(
    emit: Emitter, own: Any, upload: list[Any], base: list[Any]
) -> list[list[Any]]:
    """The step and change: base and upload minus those in a client's rows."""
    last = [_lanes_of(emit, own, place * WIDTH) for place in (BASE, GRADIENT)]
    return [
        [emit.builder.fsub(a, b) for a, b in zip(new, old, strict=True)]
        for new, old in zip((base, upload), last, strict=True)
    ]


def _fetch(emit: Emitter, array: Any, number: Any, rows: int, level: int) -> None:
    """Prefetch the number-th `rows` rows of an array."""
    start = emit.builder.mul(number, INT(rows * WIDTH))
    for k in range(rows):
        emit.fetch(array, emit.builder.add(start, INT(k * WIDTH)), level)


def _add_exactly(emit: Emitter, four: Any, sums: Any, offset: int) -> None:
    kind = ir.VectorType(DOUBLE, LANES)
    total = emit.builder.fadd(emit.load(sums, offset, kind), emit.builder.fpext(four, kind))
    emit.store(total, sums, offset)


def inner_pairs(new: Rows, slots: int) -> list[tuple[int, int]]:
    """Pairs of a client's rows to multiply when some are new; row `slots` is the model.

    The upload only with itself (`core.types.Inner`), and no pair that has not changed.
    """
    fresh = {place for place, _ in new} | {slots}
    rows = [k for k in range(slots + 1) if k != GRADIENT]
    pairs = [(i, k) for i in rows for k in rows if i <= k and (i in fresh or k in fresh)]
    return [(GRADIENT, GRADIENT), *pairs] if GRADIENT in fresh else pairs


def padded_pairs(new: Rows, slots: int) -> int:
    """The number of `inner_pairs`, rounded up to whole registers."""
    return -(-len(inner_pairs(new, slots)) // LANES) * LANES


def _store_rows(emit: Emitter, own: Any, given: list[Any], new: Rows, slots: int, out: Any) -> None:
    """Store a client's new rows in one tile and add to its inner products."""
    model, upload, base = (_lanes_of(emit, columns, 0) for columns in given)
    step, change = _step_and_change(emit, own, upload, base)
    parts = {"upload": upload, "base": base, "step": step, "change": change}
    held = {slots: model, **{place: parts[part] for place, part in new}}
    for place, _ in new:
        for k, lane in enumerate(held[place]):
            emit.store(lane, own, place * WIDTH + k * LANES)
    for s in range(slots):
        if s not in held:
            held[s] = _lanes_of(emit, own, s * WIDTH)
    dots = [_dot(emit, held[i], held[k]) for i, k in inner_pairs(new, slots)]
    dots += [ir.Constant(_LANE, [0.0] * LANES)] * (-len(dots) % LANES)
    for start in range(0, len(dots), LANES):
        _add_exactly(emit, _four_sums(emit, dots[start : start + LANES]), out, start)


@functools.cache
def store_pass(clients: int, slots: int, new: Rows) -> Any:
    """A function that stores a client's new rows and sums inner products of rows and model."""
    module, arguments, emit = function([_ARRAY] * 4 + [_EXACT] + [INT] * 4)
    mine, model, upload, base, sums, size, block, first, last = arguments
    builder, given = emit.builder, _Columns(emit, [model, upload, base], size)
    with emit.loop(first, last) as t:
        own = emit.at(mine, builder.mul(t, INT(clients * slots * WIDTH)))
        _fetch(emit, emit.at(own, _AHEAD * clients * slots * WIDTH), INT(0), slots, level=2)
        row = _block_row(emit, sums, t, block, padded_pairs(new, slots))
        _store_rows(emit, own, given.at(t), new, slots, row)
    builder.ret_void()
    return machine_code(module)
