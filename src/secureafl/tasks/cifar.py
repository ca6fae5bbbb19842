"""CIFAR-10 and CIFAR-100: 32 x 32 colour images, in either layout their site offers.

In the binary layout a sample is its label's byte (CIFAR-100: the coarse and the fine label's) and
3,072 bytes of pixels. In the python layout, which torchvision downloads, a file is a pickle. A
pickle may name any function to be called, so the few names that one of an array of bytes needs
stand for a class that does nothing here, and all others are refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from secureafl.core.errors import DataError
from secureafl.core.types import Data
from secureafl.tasks.in_memory import Samples, from_tensors, with_mirrors
from secureafl.tasks.places import find_folder

_PIXELS = 3 * 32 * 32


class Layout(NamedTuple):
    """The files of one layout, and where a sample's label is in them."""

    folder: str
    train: tuple[str, ...]
    test: str
    label: int | str  # binary: the number of label bytes, the last of which counts; pickle: the key


def find_layout(task: str, data_dir: str, layouts: Sequence[Layout]) -> tuple[Path, Layout]:
    """Return the folder of the first layout that is found, and that layout."""
    folder = find_folder(task, data_dir, [f"{one.folder}/{one.train[0]}" for one in layouts])
    return folder, next(one for one in layouts if (folder / one.train[0]).exists())


def load_layout(folder: Path, layout: Layout, classes: int, mirrored: bool) -> Data:
    """Read the data set in `folder`; with `mirrored`, mirror images are training samples too."""
    train = load_training(folder, layout, classes, mirrored)
    test = _read_samples(folder / layout.test, layout.label, classes)
    return from_tensors(train, test, str(folder))


def load_training(folder: Path, layout: Layout, classes: int, mirrored: bool) -> Samples:
    """Read the training part of the data set in `folder`."""
    parts = (_read_samples(folder / name, layout.label, classes) for name in layout.train)
    images, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return with_mirrors((images, labels)) if mirrored else (images, labels)


def _read_samples(path: Path, label: int | str, classes: int) -> Samples:
    if not path.is_file():
        raise DataError(f"{path}: no such file; fetch the data set again")
    try:
        raw = path.read_bytes()
        rows, labels = _from_bytes(raw, label) if isinstance(label, int) else _unpickle(raw, label)
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from error
    if not len(labels) or rows.shape != (len(labels), _PIXELS):
        raise DataError(f"{path}: {len(labels)} labels, images {rows.shape}; fetch the file again")
    if not all(isinstance(y, int) and 0 <= y < classes for y in labels):
        raise DataError(f"{path}: a label is not from 0 to {classes - 1}; fetch the file again")
    images = torch.from_numpy(rows.reshape(-1, 3, 32, 32).copy())
    return images, torch.tensor(labels, dtype=torch.int64)


def _from_bytes(raw: bytes, label_bytes: int) -> tuple[np.ndarray, list[int]]:
    samples = np.frombuffer(raw, np.uint8).reshape(-1, label_bytes + _PIXELS)
    return samples[:, label_bytes:], samples[:, label_bytes - 1].tolist()


def _unpickle(raw: bytes, key: str) -> tuple[np.ndarray, list[int]]:
    found = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    array, labels = found[b"data"], found[key.encode()]
    _, shape, kind, by_column, content = array.state
    if kind.arguments[0] not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"its images are of type {kind.arguments[0]!r}")
    if not isinstance(labels, list):
        raise pickle.UnpicklingError("its labels are no list")
    order = "F" if by_column else "C"
    return np.frombuffer(content, np.uint8).reshape(shape, order=order), labels


class _Inert:
    """Stands for an array or its type while unpickling: it keeps what it is given, no more."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


_MEANINGS = {
    ("numpy.core.multiarray", "_reconstruct"): _Inert,
    ("numpy._core.multiarray", "_reconstruct"): _Inert,
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _Inert,
    ("_codecs", "encode"): str.encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _MEANINGS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _MEANINGS[module, name]
