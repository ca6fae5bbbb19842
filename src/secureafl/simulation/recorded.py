"""Functions of tensors recorded on a GPU once and replayed: one launch instead of a hundred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UPS = 2  # calls before recording: libraries choose their algorithms, kernels get compiled


class Recorded:
    """Calls with tensors of the same shapes; what comes out is overwritten by the next call."""

    def __init__(self, function: Callable[..., Any], changed: Sequence[Tensor] = ()) -> None:
        """`changed` are the tensors the function writes to besides returning something."""
        self._function, self._changed = function, list(changed)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        """On the current stream, which must be the same at every call."""
        if self._graph is None:
            self._record(inputs)
        for room, given in zip(self._inputs, inputs, strict=True):
            room.copy_(given, non_blocking=True)
        self._graph.replay()  # pyrefly: ignore
        return self._outputs

    def _record(self, inputs: Sequence[Tensor]) -> None:
        stream = torch.cuda.current_stream()
        self._inputs = [given.to(stream.device, copy=True) for given in inputs]
        before = [tensor.clone() for tensor in self._changed]
        for _ in range(_WARM_UPS):
            self._function(*self._inputs)
        for tensor, earlier in zip(self._changed, before, strict=True):
            tensor.copy_(earlier)
        stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._outputs = self._function(*self._inputs)


class Reading:
    """A small tensor on its way to the host."""

    def __init__(self, values: Tensor) -> None:
        self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def get(self) -> list[float]:
        """Wait for it."""
        self._arrived.synchronize()
        return self._values.tolist()
