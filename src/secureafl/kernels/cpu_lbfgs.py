"""The shares of `reference.lbfgs_shares` as machine code for this CPU."""

from __future__ import annotations

import functools
from typing import Any

from secureafl.kernels import llvm
from secureafl.kernels.llvm import DOUBLE, INT, Number, function, machine_code, sqrt, where
from secureafl.kernels.tiles import BASE, GRADIENT, OWN
from secureafl.linalg.lbfgs import Products, bfgs_product, cap

_EXACT, _INDEX = DOUBLE.as_pointer(), INT.as_pointer()


@functools.cache
def lbfgs_pass(pairs: int) -> Any:
    """A function that computes the shares one client after the other."""
    slots = OWN + 2 * pairs
    module, arguments, emit = function([_EXACT, _EXACT, _INDEX, _EXACT, DOUBLE, DOUBLE, INT])
    gram, along, appended, shares, squared, max_correction, clients = arguments
    builder = emit.builder

    def number(array: Any, offset: Any) -> Number:
        return Number(builder, emit.load(array, offset, DOUBLE))

    with emit.loop(0, clients) as i:
        mine = emit.at(gram, builder.mul(i, INT(slots * slots)))
        model, out = (emit.at(array, builder.mul(i, INT(slots))) for array in (along, shares))
        count = emit.load(appended, i, INT)
        ring = [builder.srem(builder.add(count, INT(k)), INT(pairs)) for k in range(pairs)]
        places = [builder.add(k, INT(OWN + half)) for half in (0, pairs) for k in ring]

        def inner(a: Any, b: Any, mine: Any = mine) -> Number:
            return number(mine, builder.add(builder.mul(a, INT(slots)), b))

        def block(down: int, right: int, places: list[Any] = places) -> list[list[Number]]:
            rows, columns = places[down : down + pairs], places[right : right + pairs]
            return [[inner(a, b) for b in columns] for a in rows]

        with_v = [number(model, place) - inner(INT(BASE), place) for place in places]
        drift = Number(builder, squared) - 2.0 * number(model, BASE) + inner(INT(BASE), INT(BASE))
        products = Products(
            *(block(0, 0), block(0, pairs), block(pairs, pairs), with_v[:pairs], with_v[pairs:]),
            squared=where(drift > 0, drift, 0.0),
        )
        filled = Number(builder, builder.sitofp(count, DOUBLE))
        made = bfgs_product(llvm, products, filled)
        length = sqrt(inner(INT(GRADIENT), INT(GRADIENT)))
        scale = cap(llvm, made.length, Number(builder, max_correction) * length)
        emit.store(DOUBLE(1.0), out, GRADIENT)
        emit.store((scale * made.of_vector).value, out, BASE)
        for place, factor in zip(places, made.of_steps + made.of_changes, strict=True):
            emit.store((scale * factor).value, out, place)
    builder.ret_void()
    return machine_code(module)
