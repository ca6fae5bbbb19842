"""The data of a task for a run; loaded once where many runs of a process ask for the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.types import Data
from secureafl.runtime.devices import on_device

if TYPE_CHECKING:
    from secureafl.core.protocols import Task


class Loaded(NamedTuple):
    """A task's data."""

    on_cpu: Data
    on_device: Data  # that of the run


class _Shelf:
    """Room for the data of one task: cells of a table mostly have the same."""

    task: Task | None = None
    device: torch.device | None = None
    loaded: Loaded | None = None


_SHELF: ContextVar[_Shelf | None] = ContextVar("shelf", default=None)


@contextlib.contextmanager
def shared_data() -> Iterator[None]:
    """Runs made inside use the same tensors, so long as they follow each other with one task.

    Files that change meanwhile are not read again.
    """
    before = _SHELF.set(_Shelf())
    try:
        yield
    finally:
        _SHELF.reset(before)


def load_data(task: Task, device: torch.device) -> Loaded:
    """The data of a task, which nobody may change."""
    shelf = _SHELF.get() or _Shelf()
    if shelf.loaded is None or (shelf.task, shelf.device) != (task, device):
        shelf.loaded = None  # before there are two
        data = task.load()
        shelf.loaded = Loaded(data, on_device(data, device))
        shelf.task, shelf.device = task, device
    return shelf.loaded
