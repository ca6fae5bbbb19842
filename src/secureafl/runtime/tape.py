"""Operations written down once and carried out again: a small model's gradient without autograd.

Where layers are small, most of a gradient's time is spent on calling them and on building the graph
that leads back. So what a gradient comes to, operation by operation, is written down at one batch
and carried out for the ones that follow: the same operations in the same order, hence the same
bits. On a GPU a recorded graph is that already (`simulation.cuda_graph`).

A function that looks at a number on the host cannot be written down and stays as it is. So does one
whose result depends on anything but tensors, as far as the first repetitions can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from secureafl.runtime.bias_first import bias_first

_UNTIL, _CHECKED = 30, 3  # calls before one is written down; and those both ways after it
_FAILURES = (RuntimeError, TypeError, ValueError)  # of operations that cannot be done again

# Operations whose results follow from the shapes of what they are given.
_FILLS = (torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default)

Function = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


class Taped:
    """A function of weights and a batch, from a tape as soon as that pays."""

    def __init__(self, function: Function) -> None:
        """The shapes of what the function returns must follow from those of what it is given."""
        self._function = function
        self._runs: dict[tuple, _Run] = {}  # by the shapes of a batch

    def __call__(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """What the function returns."""
        kind = (inputs.shape, inputs.dtype, labels.shape, weights.dtype)
        run = self._runs.get(kind)
        if run is None:
            run = self._runs[kind] = _Run(self._function)
        return run(weights, inputs, labels)


class _Run:
    """The function for batches of one shape."""

    def __init__(self, function: Function) -> None:
        self._function, self._calls = function, 0
        self._replay: Function | None = None

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        self._calls += 1
        if self._calls == _UNTIL:
            found, self._replay = _written_down(self._function, given)
            return found
        if self._replay is None:
            return self._function(*given)
        if self._calls <= _UNTIL + _CHECKED:
            return self._both_ways(given)
        with torch.no_grad():
            return self._replay(*given)

    def _both_ways(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As the function says; if the tape says otherwise it is given up."""
        assert self._replay is not None
        again: tuple[Tensor, ...] = ()
        with torch.random.fork_rng(devices=[]), torch.no_grad(), suppress(*_FAILURES):
            again = self._replay(*given)
        found = self._function(*given)
        if len(again) != len(found) or not all(map(_same_bits, found, again)):
            self._replay = None
        return found


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


class _Call(NamedTuple):
    """One operation as it was carried out."""

    operation: Any  # a torch OpOverload
    arguments: tuple
    named: dict[str, Any]
    result: Any


class _Recorder(TorchDispatchMode):
    """Writes down every operation, those of the way back included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To keep torch's compiler away, torch would load it first: nearly two seconds.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, args, kwargs or {}, result))
        return result


def _written_down(
    function: Function, given: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Function | None]:
    """What the function returns now, and a tape of it if there can be one."""
    weights, *batch = given
    # Views of what stays in its place stay as they are: they need not be taken again.
    here, recorder = weights.clone(), _Recorder()
    generator = torch.get_rng_state()
    try:
        with recorder:
            found = function(here, *batch)
    except _FAILURES:  # there are layers that nobody may watch
        torch.set_rng_state(generator)
        return function(*given), None
    if not all(_can_repeat(call) for call in recorder.calls):
        return found, None
    with torch.no_grad():
        return found, _Tape(here, batch, recorder.calls, found).compiled()


def _can_repeat(call: _Call) -> bool:
    tags = call.operation.tags
    reads = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    return not reads and all(isinstance(value, Tensor | None) for value in _listed(call.result))


def _listed(result: Any) -> list[Any]:
    return [*result] if isinstance(result, tuple | list) else [result]


class _Line(NamedTuple):
    """One operation as the tape repeats it."""

    results: list[str]
    text: str
    reads: set[str]
    needed: bool  # even if nobody reads a result


class _Tape:
    """Lines of a Python function that does what the calls did, for any weights and batch."""

    def __init__(
        self, weights: Tensor, batch: list[Tensor], calls: list[_Call], found: tuple[Tensor, ...]
    ) -> None:
        """`found` is what the function returned, each time in a place of its own."""
        self._known: dict[str, Any] = {}  # what does not change, by name
        self._names: dict[int, str] = {}  # of tensors, while they are known by their identity
        self._places: dict[tuple, str] = {}  # of tensors, by where they lie
        self._lines: list[_Line] = []
        self._found = found
        # Of what stays in its place, the views stay too. What is returned must not.
        viewed = _storages(call for call in calls if call.operation.is_view)
        self._staying = viewed - {_storage(tensor) for tensor in found}
        self._changed = _storages(call for call in calls if not _pure(call.operation))
        self._name(weights, "weights")
        self._known["weights"] = weights
        for number, tensor in enumerate(batch):
            self._name(tensor, f"b{number}")
        for number, call in enumerate(calls):
            self._write(number, call)

    def compiled(self) -> Function:
        """The function, which returns what the results have become."""
        last = self._spelled(self._found)
        wanted, lines = {self._names[id(tensor)] for tensor in self._found}, []
        for line in reversed(self._lines):
            if line.needed or not wanted.isdisjoint(line.results):
                wanted |= line.reads
                lines.append(f" {line.text}")
        start = ["def replay(given, b0, b1):", " weights.copy_(given)"]
        known = dict(self._known)
        exec("\n".join([*start, *reversed(lines), f" return {last}"]), known)
        return known["replay"]

    def _write(self, number: int, call: _Call) -> None:
        if call.operation.is_view and self._is_there(call):
            return
        if call.operation in _FILLS and _storage(call.result) not in self._changed:
            self._constant(call.result)  # the same numbers each time
            return
        words = [self._spelled(value) for value in call.arguments]
        words += [f"{name}={self._spelled(value)}" for name, value in call.named.items()]
        reads = {self._names[id(tensor)] for tensor in _tensors(call.arguments)}
        function, left = _fastest(call), ""
        stays = self._can_stay(call, function)
        if stays:
            names = [self._constant(call.result)]
            words.append(f"out={names[0]}")
        else:
            results = enumerate(_listed(call.result))
            names = [self._result(result, f"t{number}_{place}") for place, result in results]
            left = ", ".join(names) + (", = " if isinstance(call.result, tuple | list) else " = ")
        text = f"{left}{self._constant(function)}({', '.join(words)})"
        self._lines.append(_Line(names, text, reads, stays or not _pure(call.operation)))

    def _can_stay(self, call: _Call, function: Callable[..., Any]) -> bool:
        """Whether it pays to write the result to where it lies now, and the function can."""
        result, operation = call.result, call.operation
        if not isinstance(result, Tensor) or _storage(result) not in self._staying:
            return False
        if operation.is_view or not _pure(operation):
            return False
        out = torch.empty_like(result)
        try:
            function(*call.arguments, **call.named, out=out)
        except _FAILURES:
            return False
        return out.stride() == result.stride() and _same_bits(out, result)

    def _is_there(self, call: _Call) -> bool:
        """Whether a view need not be taken again; then its results have names."""
        given = [self._spelled(tensor) for tensor in _tensors(call.arguments)]
        results = _listed(call.result)
        if all(name in self._known for name in given):
            for result in results:
                self._spelled(result)
            return True
        if not all(_place(result) in self._places for result in results):
            return False
        for result in results:  # back to what there was, or a view that changes nothing
            self._name(result, self._places[_place(result)])
        return True

    def _result(self, result: Tensor | None, name: str) -> str:
        """What a line assigns a result to; one that was written to in place has its name."""
        if result is None or id(result) in self._names:
            return "_"
        self._name(result, name)
        return name

    def _name(self, tensor: Tensor, name: str) -> None:
        self._names[id(tensor)] = name
        self._places.setdefault(_place(tensor), name)

    def _spelled(self, value: Any) -> str:
        """How a line spells the value; a tensor that was not computed here is a constant."""
        if isinstance(value, tuple | list):
            inner = ", ".join(self._spelled(one) for one in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
        if isinstance(value, Tensor) and id(value) in self._names:
            return self._names[id(value)]
        return repr(value) if isinstance(value, bool | int | None) else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._known)}"
        self._known[name] = value
        if isinstance(value, Tensor):
            self._name(value, name)
        return name


def _place(tensor: Tensor) -> tuple:
    """Where a tensor lies; two with the same place are the same numbers."""
    start = tensor.untyped_storage().data_ptr()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _storages(calls: Iterable[_Call]) -> set[int]:
    """Where the tensors lie that these operations are given."""
    return {_storage(tensor) for call in calls for tensor in _tensors(call.arguments)}


def _tensors(arguments: Any) -> list[Tensor]:
    if isinstance(arguments, tuple | list):
        return [tensor for one in arguments for tensor in _tensors(one)]
    return [arguments] if isinstance(arguments, Tensor) else []


def _pure(operation: Any) -> bool:
    """Whether an operation changes nothing but its results."""
    random = torch.Tag.nondeterministic_seeded in operation.tags
    return not (operation._schema.is_mutable or random)


def _fastest(call: _Call) -> Callable[..., Any]:
    """Torch's own function of that name where it does the same: it is called sooner."""
    if not _pure(call.operation):
        return call.operation  # to try it would change something
    if call.operation is torch.ops.aten.addmm.default and not call.named:
        product = bias_first(*call.arguments)
        if product is not None:
            return product
    name = call.operation._schema.name.removeprefix("aten::")
    function = getattr(torch, name, None) or getattr(Tensor, name, None)
    if function is None:
        return call.operation
    try:
        again, wanted = _listed(function(*call.arguments, **call.named)), _listed(call.result)
        same = all(_equal(one, other) for one, other in zip(again, wanted, strict=True))
    except _FAILURES:
        return call.operation
    return function if same else call.operation


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
