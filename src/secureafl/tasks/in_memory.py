"""Data sets held in memory as tensors: every task's `load` checks and returns one."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from secureafl.core.errors import DataError
from secureafl.core.types import Data
from secureafl.tasks.samples import Samples, read_samples

_CHUNK = 1000  # samples at a time, so that statistics of a large set need little memory


def from_tensors(
    train: Samples, test: Samples, source: str, train_origin: Tensor | None = None
) -> Data:
    """Make a data set of tensors; inputs are standardised per channel (second axis) when used.

    Images stay bytes. Inputs of other whole numbers, such as tokens, are left alone. Labels are
    whole numbers from 0 (classes), or floats (a regression).

    >>> samples = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> secureafl.from_tensors(samples, samples, "six points").train_inputs.shape
    torch.Size([6, 2])
    """
    for samples, part in ((train, "training"), (test, "test")):
        _check(*_pair_of_tensors(samples, f"{source}, {part} samples"), f"{source}, {part} samples")
    _check_origin(train_origin, len(train[0]), source)
    if train[0].dtype != test[0].dtype:
        kinds = f"inputs are {train[0].dtype} for training and {test[0].dtype} for the test"
        raise DataError(f"{source}: {kinds}; give both alike")
    mean, std = _statistics(train[0])
    origin = [] if train_origin is None else [train_origin]
    return Data(
        *train,
        *test,
        pixel_mean=mean,
        pixel_std=std,
        source=f"{source} ({len(train[0]):,} training, {len(test[0]):,} test samples)",
        fingerprint=f"{_checksum([*train, *test, *origin]):08x}",
        train_origin=train_origin,
    )


def with_mirrors(samples: Samples) -> Samples:
    """Append the mirror image of every image, with the same label."""
    images, labels = samples
    return torch.cat([images, images.flip(-1)]), labels.repeat(2)


def from_datasets(train: Dataset, test: Dataset, source: str) -> Data:
    """Data sets whose items are (input, label), or with columns, read once into memory.

    >>> points = torch.utils.data.TensorDataset(torch.rand(6, 2), torch.arange(6) % 3)
    >>> secureafl.from_datasets(points, points, "six points").train_labels
    tensor([0, 1, 2, 0, 1, 2])
    """
    samples = (read_samples(train, "training samples"), read_samples(test, "test samples"))
    return from_tensors(*samples, source)


def _pair_of_tensors(samples: Any, what: str) -> Samples:
    """The samples, if they are inputs and labels in tensors."""
    kinds = [type(part).__name__ for part in samples] if isinstance(samples, tuple | list) else []
    if len(kinds) != 2 or not all(isinstance(part, Tensor) for part in samples):
        told = " and ".join(kinds) or type(samples).__name__
        remedy = "give two tensors; secureafl.from_datasets takes arrays, lists and tables too"
        raise DataError(f"{what}: of type {told}; {remedy}")
    return samples[0], samples[1]


def _check_origin(origin: Any, count: int, source: str) -> None:
    """Raise unless there is no origin, or a whole number for each training sample."""
    if origin is None:
        return
    told = type(origin).__name__
    if isinstance(origin, Tensor):
        told = f"{origin.dtype} {tuple(origin.shape)}"
        if origin.shape == (count,) and not (origin.is_floating_point() or origin.is_complex()):
            return
    remedy = "give a tensor with a whole number for each"
    raise DataError(f"{source}: train_origin is {told} for {count:,} training samples; {remedy}")


def _check(inputs: Tensor, labels: Tensor, what: str) -> None:
    if not len(inputs) or labels.shape != inputs.shape[:1]:
        shapes = f"{tuple(inputs.shape)} and {tuple(labels.shape)}"
        raise DataError(
            f"{what}: inputs and labels are {shapes}; give a label for each, at least 1"
        )
    kinds = (torch.int64, torch.float32)
    if labels.dtype not in kinds:
        raise DataError(f"{what}: labels are {labels.dtype}; give int64 (classes) or float32")
    if labels.dtype == torch.int64 and labels.min() < 0:
        raise DataError(f"{what}: there is a label {int(labels.min())}; number classes from 0")
    for values in (inputs, labels):
        if values.is_floating_point() and not torch.isfinite(values).all():
            raise DataError(f"{what}: some numbers are not finite; remove those samples")


def _statistics(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, with bytes scaled to 0 to 1."""
    channels = inputs.shape[1] if inputs.dim() > 1 else 1
    if inputs.dtype == torch.uint8:
        counts = np.zeros((channels, 256), np.int64)
        for chunk in inputs.split(_CHUNK):
            counts += _counts(chunk, channels)
        share, value = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255
        mean = share @ value
        std = np.sqrt((share * (value - mean[:, None]) ** 2).sum(axis=1))
    elif inputs.is_floating_point():
        columns = inputs.reshape(len(inputs), channels, -1).double()
        mean, std = columns.mean(dim=(0, 2)).numpy(), columns.std(dim=(0, 2), correction=0).numpy()
    else:
        mean, std = np.zeros(channels), np.ones(channels)
    std = np.where(std > 0, std, 1)  # a constant channel is not divided by 0
    return torch.from_numpy(mean).float(), torch.from_numpy(std).float()


def _counts(images: Tensor, channels: int) -> np.ndarray:
    values = images.numpy().reshape(len(images), channels, -1)
    return np.stack([np.bincount(values[:, c].ravel(), minlength=256) for c in range(channels)])


def _checksum(tensors: list[Tensor]) -> int:
    checksum = 0
    for tensor in tensors:
        values = tensor.numpy()
        if values.dtype == np.int64 and values.max() < 256:
            values = values.astype(np.uint8)  # as data files hold labels
        checksum = zlib.crc32(np.ascontiguousarray(values).data, checksum)
    return checksum
