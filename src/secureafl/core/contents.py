"""A checksum of anything: what an object holds and, of functions and classes, what they do.

Functions of the user's own count by their bytecode, with the values that they name; those of
libraries by their names. So two processes find the same checksum for the same code, wherever it
lies and whatever its comments say. Another version of Python compiles to other bytecode.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

_PLAIN = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device)
_LIBRARIES = {"torch", "numpy", "secureafl"}  # wherever they lie


def checksum(value: Any) -> str:
    """The checksum; what it cannot look into counts by its type.

    >>> from secureafl.core.contents import checksum
    >>> checksum(lambda x: 2 * x) == checksum(lambda y: 2 * y) != checksum(lambda x: 3 * x)
    True
    """
    contents = _Contents()
    contents.add(value)
    return contents.told.hexdigest()[:8]


class _Contents:
    """Goes through an object and all that it holds, each once."""

    def __init__(self) -> None:
        self.told = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # kept, or another could get the same id

    def add(self, value: Any) -> None:
        """Add a value and what is in it."""
        pending = [value]
        while pending:  # and not by recursion, however deep an object is
            value = pending.pop()
            if isinstance(value, _PLAIN):
                self._tell(repr(value))
            elif id(value) in self._seen:
                self._tell(f"number {self._seen[id(value)][0]}")
            else:
                self._seen[id(value)] = len(self._seen), value
                parts = [*_parts(value)]
                self._tell(f"{type(value).__qualname__} of {len(parts)}")
                pending += reversed(parts)

    def _tell(self, text: str) -> None:
        self.told.update(text.encode() + b"\n")


def _parts(value: Any) -> Iterable[Any]:
    """What a value consists of."""
    if isinstance(value, Tensor):
        if is_lazy(value):
            return ("lazy",)
        return str(value.dtype), *value.shape, _bytes_of(value)
    if isinstance(value, np.ndarray):
        held = value.tolist() if value.dtype.hasobject else value.tobytes()
        return str(value.dtype), *value.shape, held
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        # Their order differs from process to process.
        return sorted(repr(x) if isinstance(x, _PLAIN) else type(x).__qualname__ for x in value)
    return _parts_of_code(value)


def _parts_of_code(value: Any) -> Iterable[Any]:
    """What a function, a class, or an object of some class consists of."""
    # What torch.compile made differs from process to process; what it was made of does not.
    plain = "_orig_mod" if isinstance(value, nn.Module) else "_torchdynamo_orig_callable"
    if isinstance(value, nn.Module | FunctionType) and hasattr(value, plain):
        return (getattr(value, plain),)
    if isinstance(value, CodeType):
        return value.co_code, value.co_consts, value.co_names
    if isinstance(value, FunctionType):
        return [_name(value)] if _is_of_a_library(value) else _parts_of_function(value)
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, classmethod | staticmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, type):
        return [_name(value)] if _is_of_a_library(value) else _parts_of_class(value)
    if isinstance(value, ModuleType):
        return (value.__name__,)
    held = _parts_of_module(value) if isinstance(value, nn.Module) else _held(value)
    return (getattr(value, "__qualname__", ""), type(value), held)


def _held(value: Any) -> dict[str, Any]:
    # The number of a hook is that of all hooks so far, whoever they belong to.
    return {} if isinstance(value, RemovableHandle) else getattr(value, "__dict__", {})


def _parts_of_module(module: nn.Module) -> dict[str, Any]:
    """What a module holds; whether it trains or is evaluated is the caller's matter."""
    held = {name: value for name, value in vars(module).items() if name != "training"}
    hooks = {k: [*v.values()] for k, v in held.items() if "_hooks" in k and isinstance(v, dict)}
    return held | hooks


def _parts_of_function(function: FunctionType) -> list[Any]:
    cells: list[Any] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # one that has no value yet
            cells.append(cell.cell_contents)
    known, names = function.__globals__, _names(function.__code__)
    named = [known[name] for name in names if name in known]
    return [function.__code__, function.__defaults__, function.__kwdefaults__, cells, named]


def _names(code: CodeType) -> list[str]:
    """The names that a function uses, and those of the functions inside it."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return [*code.co_names, *(name for one in inner for name in _names(one))]


def _parts_of_class(cls: type) -> list[Any]:
    """Its bases, methods and plain attributes; what Python itself notes of it does not count."""
    methods = (FunctionType, classmethod, staticmethod, property)
    own = {k: v for k, v in vars(cls).items() if k[:2] != "__" or isinstance(v, methods)}
    return [*cls.__bases__, own]


def _bytes_of(tensor: Tensor) -> bytes:
    try:
        flat = tensor.detach().cpu().resolve_conj().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, NotImplementedError):  # without values, sparse, quantised
        return b""


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_of_a_library(value: Any) -> bool:
    """Whether a function or class is part of Python or of something installed."""
    root = str(value.__module__).partition(".")[0]
    if root == "__main__":  # of a notebook, its file is the one that was started
        return False
    if root in sys.stdlib_module_names or root in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file
