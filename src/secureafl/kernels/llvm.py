"""Machine code for this CPU, made with LLVM: vectors of floats, loops, and little else.

A compiler of Python would give no control over what makes these passes fast: sorting in registers,
the layout of a tile and what stays in the cache. Compiling takes a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

FLOAT, DOUBLE, INT = ir.FloatType(), ir.DoubleType(), ir.IntType(64)
_INT32 = ir.IntType(32)


def floats(count: int) -> ir.VectorType:
    """The type of a vector of `count` floats."""
    return ir.VectorType(FLOAT, count)


class Emitter:
    """An instruction builder that knows arrays of floats; offsets count elements."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def at(self, array: Any, offset: Any) -> Any:
        """The address `offset` elements into an array."""
        return self.builder.gep(array, [INT(offset) if isinstance(offset, int) else offset])

    def local(self, count: int) -> Any:
        """Memory for `count` floats that is freed when the function returns."""
        room = self.builder.alloca(FLOAT, size=INT(count))
        room.align = 64
        return room

    def load(self, array: Any, offset: Any, kind: Any = FLOAT) -> Any:
        """Load a value, or a vector of them, from an array."""
        pointer = self.builder.bitcast(self.at(array, offset), kind.as_pointer())
        loaded = self.builder.load(pointer)
        loaded.align = 4
        return loaded

    def store(self, value: Any, array: Any, offset: Any) -> None:
        """Store a value, or a vector of them, in an array."""
        pointer = self.builder.bitcast(self.at(array, offset), value.type.as_pointer())
        self.builder.store(value, pointer).align = 4

    def fetch(self, array: Any, offset: Any, level: int) -> None:
        """Prefetch into the cache of this level; the address need not be valid."""
        module, byte = self.builder.module, ir.IntType(8).as_pointer()
        name = "llvm.prefetch.p0"
        call = module.globals.get(name) or ir.Function(
            module, ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32]), name
        )
        place = self.builder.bitcast(self.at(array, offset), byte)
        self.builder.call(call, [place, _INT32(0), _INT32(4 - level), _INT32(1)])  # read, data

    def spread(self, value: Any, count: int) -> Any:
        """A vector with one number in every place."""
        nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
        one = self.builder.insert_element(nothing, value, _INT32(0))
        return self.pick(one, [0] * count)

    def pick(self, one: Any, places: list[int], other: Any = None) -> Any:
        """Elements of one vector, or of two put end to end."""
        other = ir.Constant(one.type, ir.Undefined) if other is None else other
        wanted = ir.Constant(ir.VectorType(_INT32, len(places)), places)
        return self.builder.shuffle_vector(one, other, wanted)

    def pair_sums(self, one: Any, other: Any) -> Any:
        """Sums of neighbours in two vectors put end to end."""
        both = range(2 * one.type.count)
        even, odd = (self.pick(one, list(both[start::2]), other) for start in (0, 1))
        return self.builder.fadd(even, odd)

    def multiply_add(self, one: Any, other: Any, total: Any) -> Any:
        """One times other plus total, rounded once."""
        return self._intrinsic("fma", one, other, total)

    def smaller(self, one: Any, other: Any) -> Any:
        """The smaller of two vectors in each place."""
        return self._intrinsic("minnum", one, other)

    def larger(self, one: Any, other: Any) -> Any:
        """The larger of two vectors in each place."""
        return self._intrinsic("maxnum", one, other)

    def _intrinsic(self, name: str, *values: Any) -> Any:
        kind, module = values[0].type, self.builder.module
        full = f"llvm.{name}.v{kind.count}f32"
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind] * len(values)), full)
        return self.builder.call(function, values, fastmath=("nnan", "nsz"))

    @contextlib.contextmanager
    def loop(self, start: Any, stop: Any) -> Iterator[Any]:
        """Loop over whole numbers, not including `stop`; yields the number."""
        start, stop = (INT(x) if isinstance(x, int) else x for x in (start, stop))
        builder, before = self.builder, self.builder.block
        body, after = (builder.append_basic_block(name) for name in ("body", "after"))
        builder.cbranch(builder.icmp_signed("<", start, stop), body, after)
        builder.position_at_end(body)
        number = builder.phi(INT)
        number.add_incoming(start, before)
        yield number
        following = builder.add(number, INT(1))
        number.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), body, after)
        builder.position_at_end(after)


class Number:
    """A double in a register, with Python's operators; comparisons give a truth value."""

    def __init__(self, builder: ir.IRBuilder, value: Any) -> None:
        self.builder = builder
        self.value = DOUBLE(value) if isinstance(value, int | float) else value

    def _with(self, operation: str, other: Any) -> Number:
        other = other if isinstance(other, Number) else Number(self.builder, other)
        return Number(self.builder, getattr(self.builder, operation)(self.value, other.value))

    def _compared(self, sign: str, other: Any) -> Number:
        other = other if isinstance(other, Number) else Number(self.builder, other)
        return Number(self.builder, self.builder.fcmp_ordered(sign, self.value, other.value))

    def __add__(self, other: Any) -> Number:
        return self._with("fadd", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Number:
        return self._with("fsub", other)

    def __mul__(self, other: Any) -> Number:
        return self._with("fmul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        return self._with("fdiv", other)

    def __rtruediv__(self, other: Any) -> Number:
        return Number(self.builder, other) / self

    def __neg__(self) -> Number:
        return Number(self.builder, self.builder.fneg(self.value))

    def __abs__(self) -> Number:
        return where(self >= 0, self, -self)

    def __and__(self, other: Number) -> Number:
        return Number(self.builder, self.builder.and_(self.value, other.value))

    def __gt__(self, other: Any) -> Number:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Number:
        return self._compared(">=", other)

    def __le__(self, other: Any) -> Number:
        return self._compared("<=", other)


def where(flag: Number, one: Any, other: Any) -> Number:
    """Select one number or the other, without a branch."""
    builder = flag.builder
    one, other = (x if isinstance(x, Number) else Number(builder, x) for x in (one, other))
    return Number(builder, builder.select(flag.value, one.value, other.value))


def sqrt(number: Number) -> Number:
    """The square root of a number."""
    root = number.builder.module.declare_intrinsic("llvm.sqrt", [DOUBLE])
    return Number(number.builder, number.builder.call(root, [number.value]))


def function(kinds: list[Any]) -> tuple[ir.Module, list[Any], Emitter]:
    """An empty function of a fresh module: arrays that do not overlap, then numbers."""
    module = ir.Module()
    made = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "run")
    for argument in made.args:
        if isinstance(argument.type, ir.PointerType):
            argument.add_attribute("noalias")
    return module, list(made.args), Emitter(ir.IRBuilder(made.append_basic_block()))


def machine_code(module: ir.Module) -> Any:
    """Compile a module's function; it does not hold Python's lock while it runs."""
    machine = _machine()
    parsed = llvm.parse_assembly(str(module))
    parsed.triple = machine.triple
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False  # everything is written in vectors already
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    kinds = [_ctype(argument.type) for argument in module.get_global("run").args]
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("run"))
    call.engine = engine  # which owns the code  # pyrefly: ignore
    return call


def address(array: np.ndarray) -> int:
    """The address of an array's numbers; faster than by `ctypes`."""
    return array.__array_interface__["data"][0]


def doubles(count: int) -> Any:
    """Zeros for a function to write to, which Python reads one by one; made sooner than arrays."""
    return (ctypes.c_double * count)()


def _ctype(kind: Any) -> Any:
    if isinstance(kind, ir.PointerType):
        return ctypes.c_void_p
    return {FLOAT: ctypes.c_float, DOUBLE: ctypes.c_double}.get(kind, ctypes.c_int64)


def _machine() -> Any:
    """A description of this CPU; each engine takes over one of its own."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
