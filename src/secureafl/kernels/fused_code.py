"""What each pointwise operation of torch is in CUDA, for kernels that carry out several.

Each has the same bits as torch's own kernel (`gpu_fused.cu`); one without an entry here is left to
torch, and so are numbers of other types than those here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch._ops import OpOverload

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "index",
    torch.int32: "int",
    torch.bool: "bool",
}
_WHOLE = (torch.int64, torch.int32)
_LISTED = 16  # numbers at most that are chosen from one by one
_LONGEST = 2**31  # a whole number below it is an argument of a kernel

Number = bool | int | float


class Row(NamedTuple):
    """A row of a table, whose number only the device knows."""

    table: Tensor
    number: Any


class Operation(NamedTuple):
    """An operation on some operands: an expression in `{0}`, `{1}` and so on."""

    text: str
    operands: Sequence[Tensor | Number | Row]
    dtype: torch.dtype  # what the operands are converted to first


Reader = Callable[[Sequence[Any], Mapping[str, Any], torch.dtype], Operation | None]


def read_operation(
    function: OpOverload, args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype
) -> Operation | None:
    """The operation that a call is, if it can be written down; its result is of `dtype`."""
    reader = _READERS.get(function.overloadpacket.__name__)
    if reader is None or dtype not in TYPES:
        return None
    operation = reader(args, given, dtype)
    if operation is None or operation.dtype not in TYPES:
        return None
    return operation if all(map(_is_plain, operation.operands)) else None


def is_known(function: OpOverload) -> bool:
    """Whether some calls of it can be written down."""
    return function.overloadpacket.__name__ in _READERS


def _is_plain(operand: Tensor | Number | Row) -> bool:
    if isinstance(operand, Row):
        return _is_plain(operand.table) and _is_plain(operand.number)
    if isinstance(operand, Tensor):
        return operand.dtype in TYPES
    return isinstance(operand, float) or (isinstance(operand, int) and abs(operand) < _LONGEST)


def _numbers_of(args: Sequence[Any]) -> list[Any] | None:
    """The arguments, if all are tensors or numbers."""
    right = all(isinstance(one, Tensor | bool | int | float) for one in args)
    return list(args) if right else None


def _simple(text: str, count: int, only: Sequence[torch.dtype] = tuple(TYPES)) -> Reader:
    """An operation of so many operands, converted to what the result is."""

    def read(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
        found = _numbers_of(args)
        if found is None or len(found) != count or given or dtype not in only:
            return None
        return Operation(text, found, dtype)

    return read


def _compared(sign: str) -> Reader:
    """A comparison, of what both operands are converted to."""

    def read(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
        found = _numbers_of(args)
        if found is None or len(found) != 2 or given:
            return None
        return Operation(f"{{0}} {sign} {{1}}", found, torch.result_type(*found))

    return read


def _added(first: int, second: int, sign: int) -> Reader:
    """One operand and a multiple of the other."""

    def read(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
        found, more = _numbers_of(args), dict(given)
        if found is not None and len(found) == 3:  # `rsub` has it in its place
            more["alpha"] = found.pop()
        factor = more.pop("alpha", 1)
        if found is None or len(found) != 2 or more:
            return None
        one, other = found[first], found[second]
        if dtype == torch.bool:
            return Operation("plus({0}, {1})", [one, other], dtype) if factor == sign else None
        return Operation("plus_scaled({0}, {1}, {2})", [one, other, sign * factor], dtype)

    return read


def _divided(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
    found = _numbers_of(args)
    if found is None or len(found) != 2 or given or not dtype.is_floating_point:
        return None
    one, other = found
    if isinstance(one, Tensor) and not one.is_cpu and not isinstance(other, Tensor):
        # On a GPU torch multiplies by what one divided by a number of the host is, in float64.
        inverse = 1 / other if other else math.copysign(math.inf, other)
        return Operation("times({0}, {1})", [one, inverse], dtype)
    return Operation("over({0}, {1})", found, dtype)


def _chosen(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
    found = _numbers_of(args)
    if found is None or len(found) != 3 or given or found[0].dtype != torch.bool:
        return None
    return Operation("(bool){0} ? {1} : {2}", found, dtype)


def _held_between(
    args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype
) -> Operation | None:
    value, *ends = args
    lowest, highest = [*ends, None, None][:2]
    lowest, highest = given.get("min", lowest), given.get("max", highest)
    text, operands = "{0}", [value]
    for name, end in (("larger", lowest), ("smaller", highest)):
        if end is not None:
            text = f"{name}({text}, {{{len(operands)}}})"
            operands.append(end)
    found, more = _numbers_of(operands), set(given) - {"min", "max"}
    return Operation(text, found, dtype) if found and not more and dtype != torch.bool else None


def _squared(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
    fits = isinstance(args[0], Tensor) and args[1] == 2 and not given and dtype.is_floating_point
    return Operation("times({0}, {0})", [args[0]], dtype) if fits else None


def _converted(
    args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype
) -> Operation | None:
    """A copy, of another type perhaps."""
    kept = (None, torch.contiguous_format, torch.preserve_format)
    if given.get("memory_format") not in kept or len(args) != 1 or given.get("pin_memory"):
        return None
    return Operation("{0}", [args[0]], dtype)


def _filled(place: int | None, value: Number = 0) -> Reader:
    """The same number everywhere: that argument, or the value."""

    def read(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
        number = value if place is None else args[place]
        right = isinstance(number, bool | int | float) and not given.get("pin_memory")
        return Operation("{0}", [number], dtype) if right else None

    return read


def _listed(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
    """Single numbers side by side, of which result `i` is one."""
    parts = args[0]
    if any(one.numel() != 1 for one in parts) or len(parts) > _LISTED or given:
        return None
    text = "{0}"
    for place in range(1, len(parts)):
        text = f"i == {place} ? {{{place}}} : {text}"
    return Operation(text, parts, dtype)


def _row(args: Sequence[Any], given: Mapping[str, Any], dtype: torch.dtype) -> Operation | None:
    table, dim, number = args
    fits = dim == 0 and table.dim() > 0 and number.dtype in _WHOLE
    fits = fits and table.is_contiguous() and table.numel() > 0 and len(table) < _LONGEST
    return Operation("{0}", [Row(table, number)], dtype) if fits and not given else None


_CONSTANTS: Mapping[str, Reader] = {
    "zeros": _filled(None),
    "zeros_like": _filled(None),
    "new_zeros": _filled(None),
    "ones": _filled(None, 1),
    "ones_like": _filled(None, 1),
    "new_ones": _filled(None, 1),
    "full": _filled(1),
    "full_like": _filled(1),
    "new_full": _filled(2),
    "scalar_tensor": _filled(0),
}

_LOGICAL = (torch.bool,)
_COUNTED = (torch.float32, torch.float64, *_WHOLE)
_FLOATS = (torch.float32, torch.float64)

_READERS: Mapping[str, Reader] = {
    **_CONSTANTS,
    "add": _added(0, 1, 1),
    "sub": _added(0, 1, -1),
    "rsub": _added(1, 0, -1),
    "mul": _simple("times({0}, {1})", 2),
    "div": _divided,
    "floor_divide": _simple("whole_part({0}, {1})", 2, _WHOLE),
    "remainder": _simple("rest({0}, {1})", 2, _WHOLE),
    "pow": _squared,
    "neg": _simple("-{0}", 1, _COUNTED),
    "abs": _simple("size_of({0})", 1, _COUNTED),
    "sqrt": _simple("root({0})", 1, _FLOATS),
    "reciprocal": _simple("over(({type})1, {0})", 1, _FLOATS),
    "minimum": _simple("smaller({0}, {1})", 2, _COUNTED),
    "maximum": _simple("larger({0}, {1})", 2, _COUNTED),
    "clamp": _held_between,
    "clamp_min": _simple("larger({0}, {1})", 2, _COUNTED),
    "clamp_max": _simple("smaller({0}, {1})", 2, _COUNTED),
    "lt": _compared("<"),
    "le": _compared("<="),
    "gt": _compared(">"),
    "ge": _compared(">="),
    "eq": _compared("=="),
    "ne": _compared("!="),
    "isnan": lambda args, given, dtype: Operation("{0} != {0}", [args[0]], args[0].dtype),
    "logical_not": _simple("!{0}", 1, _LOGICAL),
    "logical_and": _simple("{0} && {1}", 2, _LOGICAL),
    "logical_or": _simple("{0} || {1}", 2, _LOGICAL),
    "logical_xor": _simple("{0} != {1}", 2, _LOGICAL),
    "bitwise_not": _simple("!{0}", 1, _LOGICAL),
    "bitwise_and": _simple("{0} && {1}", 2, _LOGICAL),
    "bitwise_or": _simple("{0} || {1}", 2, _LOGICAL),
    "bitwise_xor": _simple("{0} != {1}", 2, _LOGICAL),
    "where": _chosen,
    "clone": _converted,
    "_to_copy": _converted,
    "index_select": _row,
    "cat": _listed,
}
