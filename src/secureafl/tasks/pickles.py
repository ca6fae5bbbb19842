"""The pickles CIFAR comes in, read without running anything they ask for.

A pickle may name any function to be called. Here the only names that mean anything are those an
array of bytes is written with, and each of them stands for a class of this file.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from secureafl.core.errors import DataError


class _Type:
    """The type of an array: unsigned bytes, or an error."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"array of {code!r}")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes have none of."""


class _Array:
    """An array as it is being filled."""

    values: np.ndarray

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, by_column, raw = state
        order = "F" if by_column else "C"
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _text_to_bytes(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


_MEANINGS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _text_to_bytes,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _MEANINGS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _MEANINGS[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """A dictionary of arrays of bytes, texts, numbers and lists of these."""
    try:
        found = _Reader(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(found, dict):
            raise pickle.UnpicklingError("no dictionary")
        named = {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}
        return {k: v.values if isinstance(v, _Array) else v for k, v in named.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from error
