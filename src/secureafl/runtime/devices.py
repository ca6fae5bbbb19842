"""Where a run computes, and with how many threads and which kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import ConfigError
from secureafl.kernels.dispatch import using_kernels

if TYPE_CHECKING:
    from secureafl.core.types import Data
    from secureafl.kernels.dispatch import Kernels


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` stands for here."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': torch sees no GPU here; use --device cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


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

    def __init__(self, threads: int, kernels: Kernels = "auto") -> None:
        """`threads = 0`: as many as the process uses."""
        self._threads, self._kernels = threads, using_kernels(kernels)
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._kernels.__enter__()
        before = torch.get_num_threads()
        self._before.append(before)
        _set_threads(self._threads or before)

    def __exit__(self, *raised: object) -> None:
        _set_threads(self._before.pop())
        self._kernels.__exit__(None, None, None)


def _set_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
