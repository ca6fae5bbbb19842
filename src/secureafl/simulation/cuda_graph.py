"""Work recorded on a GPU once and replayed: one launch instead of a hundred."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from secureafl.kernels.dispatch import on_gpu
from secureafl.kernels.fused import Fused

_log = logging.getLogger("secureafl")

_WARM_UPS = 2  # calls before recording: libraries choose their algorithms, kernels get compiled
_SMALL = 4096  # numbers of a tensor that is copied together with others
_PART = 2**20 + 1  # numbers of a tensor that are added up at a time
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Recorded:
    """A function of tensors that stay where they are; each call overwrites what the last gave."""

    def __init__(
        self,
        function: Callable[[], Any],
        stream: torch.cuda.Stream,
        changed: Sequence[Tensor] = (),
        others: Sequence[Recorded] = (),
    ) -> None:
        """`changed` are the tensors that must be written to by real calls only.

        Memory that `others` need during a call is used by this one too, so they must be called in
        the same stream, and what a call gives be read before the next.
        """
        self._function, self._stream, self._changed = function, stream, list(changed)
        self._others = others
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Any:
        """With the recording's stream as the current one."""
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        return self._outputs

    def _record(self) -> torch.cuda.CUDAGraph:
        function = fewer_operations(self._function, self._changed, self._stream.device)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next((one._graph.pool() for one in self._others if one._graph), None)
        options = {"stream": self._stream, "capture_error_mode": "thread_local"}
        with _no_garbage(), torch.cuda.graph(graph, pool, **options):
            self._outputs = function()
        return graph


def fewer_operations(
    function: Callable[[], Any], changed: Sequence[Tensor], device: torch.device
) -> Callable[[], Any]:
    """The function with its pointwise operations put together, if that has the same bits.

    It has been called several times then, as warming up needs, and what it `changed` is as before.
    """
    before = [tensor.clone() for tensor in changed]
    plain = [_tried(function, changed, before) for _ in range(_WARM_UPS)]
    if not on_gpu(torch.empty(0, device=device)):
        return function

    def fused(*, spoilt: bool = False) -> Any:
        with Fused(device, spoilt=spoilt):
            return function()

    try:
        with _no_garbage():  # it would free memory that is not to be written then
            same = _tried(lambda: fused(spoilt=True), changed, before) == plain[-1]
    except Exception as error:  # what a user's model calls may not be for modes of torch
        _log.warning("operations are carried out one by one, which is slower: %s", error)
        same = False
    # Not the same is what reads memory behind torch's back, or is never the same twice.
    return fused if same else function


def _tried(
    function: Callable[[], Any], changed: Sequence[Tensor], before: Sequence[Tensor]
) -> list[int]:
    """Checksums of what a call gives and changes; the changes are undone."""
    try:
        given = [leaf for leaf in tree_leaves(function()) if isinstance(leaf, Tensor)]
        return [int(number) for number in map(_checksum, [*given, *changed])]
    finally:
        for tensor, earlier in zip(changed, before, strict=True):
            tensor.copy_(earlier)


def _checksum(tensor: Tensor) -> Tensor:
    """A number of 64 bits that changes with any bit of the tensor, and with their order."""
    words = (
        tensor.detach().contiguous().view(-1).view(_WORDS.get(tensor.element_size(), torch.uint8))
    )
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in words.split(_PART):
        places = torch.arange(1, len(part) + 1, device=tensor.device)
        total = total * _PART + (part * places).sum() + part.sum(dtype=torch.int64)
    return total


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Nothing is collected inside: to free another run's recording would spoil this one."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def put_back(old: Iterable[Tensor], new: Iterable[Tensor]) -> None:
    """Copy what was made anew to where the next replay looks for it."""
    pairs = [(o, n) for o, n in zip(old, new, strict=True) if o.data_ptr() != n.data_ptr()]
    # Many small tensors are copied at once; there a vector would keep a few blocks of threads busy.
    small = [pair for pair in pairs if pair[0].numel() <= _SMALL]
    if small:
        torch._foreach_copy_([o for o, _ in small], [n for _, n in small])
    for o, n in pairs:
        if o.numel() > _SMALL:
            o.copy_(n)


class Reading:
    """A few numbers that recorded work leaves for the host, always in the same place."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream, self._arrived = stream, torch.cuda.Event()
        self._values: Tensor | None = None

    def write(self, values: Tensor) -> None:
        """What the host will read; part of what is recorded."""
        if self._values is None:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._values.copy_(values, non_blocking=True)

    def expect(self) -> None:
        """After a replay: from now on the numbers are under way."""
        self._arrived.record(self._stream)

    @property
    def under_way(self) -> bool:
        """Whether `read` would have to wait."""
        return not self._arrived.query()

    def read(self) -> Any:
        """Wait for the numbers."""
        self._arrived.synchronize()
        return self._values.tolist()  # pyrefly: ignore  (written by then)
