"""Pointwise operations of torch put off, and carried out several in one kernel.

A round recorded on a GPU costs about as much as it has operations, and most of a rule's are small:
comparisons of two numbers, a choice, a vector scaled. Inside `Fused` they wait until an operation
of another kind, or a kernel of this package, needs one of them; then all that wait are one kernel.
The bits stay what they are (`kernels.fused_code`). Results nobody holds any more are not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from secureafl.kernels.fused_code import (
    TYPES,
    Number,
    Row,
    is_known,
    read_operation,
)
from secureafl.kernels.gpu_source import ONE_CLIENT, processors, written

if TYPE_CHECKING:
    from torch._ops import OpOverload

_MOST = 64  # operations of a kernel, which takes an argument for each operand
_BLOCKS = 8  # of a multiprocessor, which is all its threads
_LARGEST = 2**31  # numbers of a result, which kernels count with 32 bits
_KINDS = (Tensor, torch.nn.Parameter)  # not those that carry out calls of torch themselves
_FORMS = ("empty_like", "new_empty", "new_empty_strided")  # look at no number of a tensor


class _Waiting(NamedTuple):
    """An operation that was put off."""

    text: str  # see `Operation`, as `read_as` is its dtype
    read_as: torch.dtype
    operands: Sequence[Any]  # who makes those that wait too; nothing here may hold a result
    size: int
    dtype: torch.dtype
    storage: StorageWeakRef  # where its result will be, if anybody still holds that

    def tensor(self) -> Tensor | None:
        """The whole result, not written yet; None if nobody can ask for it."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            return None
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        return tensor.set_(storage)


class Fused(TorchDispatchMode):
    """Puts off pointwise operations on tensors of one device; at the end all are carried out.

    With `spoilt` memory of results holds what is not a number until they are written: whoever
    reads it behind torch's back, by a kernel of its own, has another result than without this.
    """

    def __init__(self, device: torch.device, *, spoilt: bool = False) -> None:
        super().__init__()
        self._device, self._spoilt = device, spoilt
        self._waiting: dict[int, _Waiting] = {}  # by the address of the storage, which stays taken

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first call would import torch's compiler, which takes seconds.
        return False

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        if exc_type is None:
            self.settle()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func.is_view or func.overloadpacket.__name__ in _FORMS:
            return func(*args, **given)
        tensors = _tensors_in(args, given)
        ordinary = all(type(one) in _KINDS and one.layout == torch.strided for one in tensors)
        if ordinary and is_known(func):
            made = self._put_off(func, args, given, tensors)
            if made is not None:
                return made
        if not ordinary or func._schema.is_mutable or any(map(self._waits, tensors)):
            self.settle()
        return func(*args, **given)

    def _waits(self, tensor: Tensor) -> bool:
        return bool(self._waiting) and tensor.untyped_storage()._cdata in self._waiting

    def _put_off(
        self,
        function: OpOverload,
        args: Sequence[Any],
        given: Mapping[str, Any],
        tensors: Sequence[Tensor],
    ) -> Tensor | None:
        """The result of a call, still to be written; None if it cannot be put off."""
        if not self._is_here(given.get("device"), tensors):
            return None
        form = _form_of(function, args, given)
        size = form.numel()
        if not (form.is_contiguous() and 0 < size < _LARGEST):
            return None
        operation = read_operation(function, args, given, form.dtype)
        if operation is None or not all(_fits(one, size) for one in operation.operands):
            return None
        if any(map(self._is_part, operation.operands)):
            self.settle()
        operands = [self._maker_of(one) for one in operation.operands]
        made = torch.empty(form.shape, dtype=form.dtype, device=self._device)
        if self._spoilt:
            made.view(-1).view(torch.uint8).fill_(255)
        storage, (text, _, read_as) = made.untyped_storage(), operation
        parts = (text, read_as, operands, size, form.dtype, StorageWeakRef(storage))
        self._waiting[storage._cdata] = _Waiting(*parts)
        if len(self._waiting) >= _MOST:
            self.settle()
        return made

    def _is_here(self, device: Any, tensors: Sequence[Tensor]) -> bool:
        """Whether a call is about tensors of the device, and its result will be there."""
        if device is None and not tensors:
            device = torch.get_default_device()
        there = self._device if device is None else torch.device(device)
        right = there.type == self._device.type and there.index in (None, self._device.index)
        return right and all(one.device == self._device for one in tensors)

    def _is_part(self, operand: Tensor | Number | Row) -> bool:
        """Whether the operand has to be written before, since it is not all of what waits."""
        if isinstance(operand, Row):
            return self._waits(operand.table) or self._is_part(operand.number)
        if not (isinstance(operand, Tensor) and self._waits(operand)):
            return False
        maker = self._waiting[operand.untyped_storage()._cdata]
        whole = operand.numel() == maker.size and operand.is_contiguous()
        return not (whole and operand.dtype == maker.dtype)

    def _maker_of(self, operand: Tensor | Number | Row) -> Any:
        """What stands for an operand: who makes it, if that is to come."""
        if isinstance(operand, Row):
            return Row(operand.table, self._maker_of(operand.number))
        if isinstance(operand, Tensor) and self._waits(operand):
            return self._waiting[operand.untyped_storage()._cdata]
        return operand

    def settle(self) -> None:
        """Carry out all that waits."""
        waiting, self._waiting = [*self._waiting.values()], {}
        made = {id(one): tensor for one in waiting if (tensor := one.tensor()) is not None}
        if made:
            _launch(_needed(waiting, made), made)


def _fits(operand: Tensor | Number | Row, size: int) -> bool:
    """Whether each of so many results takes the number at its own place, or all take one."""
    if isinstance(operand, Row):
        return size == operand.table[0].numel()
    if not isinstance(operand, Tensor) or operand.numel() == 1:
        return True
    return operand.numel() == size and operand.is_contiguous()


def _tensors_in(args: Sequence[Any], given: Mapping[str, Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]


def _form_of(function: OpOverload, args: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    """The result of a call without its numbers."""

    def bare(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")

    args, given = tree_map(bare, (args, dict(given)))
    if not _tensors_in(args, {}) or given.get("device") is not None:
        given["device"] = "meta"
    return function(*args, **given)


def _needed(waiting: Sequence[_Waiting], made: Mapping[int, Tensor]) -> list[_Waiting]:
    """What is asked for and what that rests on, in the order in which it was put off."""
    needed, left = set[int](), [one for one in waiting if id(one) in made]
    while left:
        one = left.pop()
        if id(one) not in needed:
            needed.add(id(one))
            left += _makers(one.operands)
    return [one for one in waiting if id(one) in needed]


def _makers(operands: Sequence[Any]) -> list[_Waiting]:
    numbers = [one.number for one in operands if isinstance(one, Row)]
    return [one for one in [*operands, *numbers] if isinstance(one, _Waiting)]


class _Text:
    """The kernel of some operations. Numbers of the host are arguments, so many calls share one."""

    def __init__(self, made: Mapping[int, Tensor]) -> None:
        self._made = made
        self._parameters, self.arguments = list[str](), list[Any]()
        self._names: dict[int, str] = {}  # of results
        self._pointers: dict[tuple[int, str], str] = {}

    def write(self, needed: Sequence[_Waiting]) -> str:
        """The source; every thread finds the single numbers, which vectors may rest on."""
        by_size = {size: [one for one in needed if one.size == size] for size in _sizes(needed)}
        single = by_size.pop(1, [])
        lines = [self._line(one) for one in single]
        stores = [*filter(None, [self._store(one, "0") for one in single])]
        if stores:
            lines += ["if (blockIdx.x == 0 && threadIdx.x == 0) {", *stores, "}"]
        for size, ones in by_size.items():
            start, step = "blockIdx.x * blockDim.x + threadIdx.x", "gridDim.x * blockDim.x"
            count = self._argument("int", size)
            lines += [f"for (int i = {start}; i < {count}; i += {step}) {{"]
            lines += [self._line(one) for one in ones]
            lines += [*filter(None, [self._store(one, "i") for one in ones]), "}"]
        head = f'extern "C" __global__ void __launch_bounds__({ONE_CLIENT}) fused('
        return "\n".join([f"{head}{', '.join(self._parameters)}) {{", *lines, "}\n"])

    def _line(self, one: _Waiting) -> str:
        kind = TYPES[one.read_as]
        parts = [f"(({kind}){self._value(each, one.size)})" for each in one.operands]
        text = one.text.replace("{type}", kind).format(*parts)
        name = self._names[id(one)] = f"v{len(self._names)}"
        return f"const {TYPES[one.dtype]} {name} = {text};"

    def _store(self, one: _Waiting, place: str) -> str:
        if id(one) not in self._made:
            return ""
        memory = self._argument(f"{TYPES[one.dtype]}* __restrict__", self._made[id(one)])
        return f"{memory}[{place}] = {self._names[id(one)]};"

    def _value(self, operand: Any, size: int) -> str:
        if isinstance(operand, _Waiting):
            return self._names[id(operand)]
        if isinstance(operand, Row):
            return self._value_in_row(operand, size)
        if isinstance(operand, Tensor):
            return f"{self._memory(operand)}[{'0' if operand.numel() == 1 else 'i'}]"
        if isinstance(operand, float):
            return self._argument("double", operand)
        return self._argument("int", int(operand))

    def _value_in_row(self, row: Row, size: int) -> str:
        table, rows = self._memory(row.table), self._argument("int", len(row.table))
        start = f"inside({self._value(row.number, 1)}, {rows})"
        if size == 1:
            return f"{table}[{start}]"
        return f"{table}[{start} * {self._argument('int', size)} + i]"

    def _memory(self, tensor: Tensor) -> str:
        """A pointer; one for all that read the same place."""
        kind = TYPES[tensor.dtype]
        place = (tensor.data_ptr(), kind)
        if place not in self._pointers:
            self._pointers[place] = self._argument(f"const {kind}* __restrict__", tensor)
        return self._pointers[place]

    def _argument(self, kind: str, value: Any) -> str:
        name = f"a{len(self.arguments)}"
        self._parameters.append(f"{kind} {name}")
        self.arguments.append(value)
        return name


def _sizes(needed: Sequence[_Waiting]) -> list[int]:
    return sorted({one.size for one in needed})


def _launch(needed: Sequence[_Waiting], made: Mapping[int, Tensor]) -> None:
    text, largest = _Text(made), _sizes(needed)[-1]
    kernel = written("gpu_fused.cu", text.write(needed), "fused")
    most = _BLOCKS * processors(next(iter(made.values())).device)
    threads = ONE_CLIENT if largest > 1 else 1  # which is enough for single numbers
    kernel((min(-(-largest // ONE_CLIENT), most), 1, 1), (threads, 1, 1), text.arguments)
