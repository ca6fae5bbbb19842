"""Where a run computes, and with how many threads and which kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import ConfigError
from secureafl.experiment import require_device
from secureafl.kernels.dispatch import using_kernels

if TYPE_CHECKING:
    from secureafl.core.types import Data
    from secureafl.kernels.dispatch import Kernels


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:1` stands for here."""
    require_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(name)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device = {name!r}: torch sees no GPU here; use --device cpu or auto")
    if (found.index or 0) >= max(1, torch.cuda.device_count()):
        there = f"torch sees {torch.cuda.device_count()} here, numbered from 0"
        raise ConfigError(f"device = {name!r}: no such GPU; {there}")
    return found


def on_device(data: Data, device: torch.device) -> Data:
    """The data set with its tensors moved."""
    return data._replace(
        train_inputs=data.train_inputs.to(device),
        train_labels=data.train_labels.to(device),
        test_inputs=data.test_inputs.to(device),
        test_labels=data.test_labels.to(device),
        pixel_mean=data.pixel_mean.to(device),
        pixel_std=data.pixel_std.to(device),
    )


class ComputeContext:
    """Entered around everything that a run computes; left, it puts back what was there.

    So runs with other kernels or threads can take turns in one process. It can be entered again.
    """

    def __init__(
        self, threads: int, kernels: Kernels = "auto", device: torch.device | None = None
    ) -> None:
        """`threads = 0`: as many as the process uses; a GPU by its number is the current one."""
        self._threads, self._kernels = threads, using_kernels(kernels)
        self._gpu = device.index if device is not None and device.type == "cuda" else None
        self._before: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        self._kernels.__enter__()
        before = torch.get_num_threads()
        gpu = -1 if self._gpu is None else torch.cuda.current_device()
        self._before.append((before, gpu))
        _set_threads(self._threads or before)
        _set_gpu(self._gpu if self._gpu is not None else -1)

    def __exit__(self, *raised: object) -> None:
        threads, gpu = self._before.pop()
        _set_threads(threads)
        _set_gpu(gpu)
        self._kernels.__exit__(None, None, None)


def _set_gpu(number: int) -> None:
    if number >= 0:
        torch.cuda.set_device(number)


def _set_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
