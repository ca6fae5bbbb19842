"""Which version of the hot operations runs: plain torch, compiled for the CPU, or for a GPU."""

from __future__ import annotations

import functools
import importlib
import logging
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

import torch

from secureafl.core.errors import ConfigError
from secureafl.kernels import reference

if TYPE_CHECKING:
    from torch import Tensor

Kernels = Literal["auto", "reference", "cpu", "gpu"]

_DEVICE = {"cpu": "cpu", "cuda": "gpu"}
_NEEDS = {"cpu": "llvmlite"}  # a GPU's are compiled by what torch brings along
# Of the code that runs now, not of the process: runs by turns and in threads keep their own.
_chosen: ContextVar[Kernels] = ContextVar("kernels", default="auto")


def using_kernels(kind: Kernels) -> AbstractContextManager[None]:
    """A context that chooses the version for what is computed inside; it can be entered again.

    "auto" is the fastest version that runs here.
    """
    _require_available(kind)
    return _Chosen(kind)


class _Chosen:
    """Sets the choice and puts the earlier one back, at a cost that a single step does not feel."""

    def __init__(self, kind: Kernels) -> None:
        self._kind: Kernels = kind
        self._tokens: list[Token[Kernels]] = []

    def __enter__(self) -> None:
        self._tokens.append(_chosen.set(self._kind))

    def __exit__(self, *raised: object) -> None:
        _chosen.reset(self._tokens.pop())


def _require_available(kind: Kernels) -> None:
    if kind not in get_args(Kernels):
        raise ConfigError(f"kernels = {kind!r}: give one of {', '.join(get_args(Kernels))}")
    if kind == "gpu" and not torch.cuda.is_available():
        raise ConfigError("kernels = 'gpu': torch sees no GPU here; use auto")
    if kind == "cpu" and _module(kind) is None:
        raise ConfigError("kernels = 'cpu': llvmlite is missing; install it or use auto")


def version_for(tensor: Tensor) -> ModuleType:
    """The module whose operations fit this tensor's device."""
    here = _kind_for(tensor)
    chosen = _chosen.get()
    if chosen == "reference" or here == "reference":
        return reference
    if chosen not in ("auto", here):
        raise ConfigError(
            f"kernels = '{chosen}': the model is on {tensor.device.type}; use auto or {here}"
        )
    return _module(here) or _say_once(here)


def on_gpu(tensor: Tensor) -> bool:
    """Whether what was written for a GPU is to run on this tensor."""
    return _kind_for(tensor) == "gpu" and version_for(tensor) is not reference


def _kind_for(tensor: Tensor) -> str:
    # A device's name takes longer to find than whether it is the CPU.
    return "cpu" if tensor.is_cpu else _DEVICE.get(tensor.device.type, "reference")


@functools.cache
def _module(kind: str) -> ModuleType | None:
    try:
        importlib.import_module(_NEEDS.get(kind, "torch"))
    except ImportError:
        return None
    return importlib.import_module(f"secureafl.kernels.{kind}")


@functools.cache
def _say_once(kind: str) -> ModuleType:
    logging.getLogger("secureafl").warning(
        "%s is not installed: rounds are several times slower (pip install %s)",
        *(_NEEDS[kind], _NEEDS[kind]),
    )
    return reference
