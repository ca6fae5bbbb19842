"""The python batches CIFAR-10 and CIFAR-100 come in: 32 x 32 colour images as rows of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from secureafl.core.errors import DataError
from secureafl.core.types import Data
from secureafl.tasks.in_memory import Samples, from_tensors, with_mirrors
from secureafl.tasks.pickles import read_pickle


def load_batches(
    folder: Path, train: Sequence[str], test: str, label_key: str, classes: int, mirrored: bool
) -> Data:
    """The data set in `folder`, whose training files are called `train`."""
    parts = [_read_batch(folder / name, label_key, classes) for name in (*train, test)]
    images, labels = (torch.cat(column) for column in zip(*parts[:-1], strict=True))
    found = with_mirrors((images, labels)) if mirrored else (images, labels)
    return from_tensors(found, parts[-1], str(folder))


def _read_batch(path: Path, label_key: str, classes: int) -> Samples:
    if not path.is_file():
        raise DataError(f"{path}: no such file; fetch the data set again")
    found = read_pickle(path)
    rows, labels = found.get("data"), found.get(label_key)
    if not isinstance(rows, np.ndarray) or not isinstance(labels, list) or not labels:
        raise DataError(f"{path}: no images or no {label_key!r}; fetch the file again")
    if rows.shape != (len(labels), 3 * 32 * 32):
        raise DataError(f"{path}: {len(labels)} labels, images {rows.shape}; fetch the file again")
    if not all(isinstance(y, int) and 0 <= y < classes for y in labels):
        raise DataError(f"{path}: a label is not from 0 to {classes - 1}; fetch the file again")
    images = torch.from_numpy(rows.reshape(-1, 3, 32, 32).copy())
    return images, torch.tensor(labels, dtype=torch.int64)
