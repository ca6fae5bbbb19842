"""Tiny-ImageNet: 64 x 64 colour images of 200 kinds of things and animals.

Its validation part is the test set here, since its test part has no labels.

Le, Yang, "Tiny ImageNet visual recognition challenge", CS 231N, Stanford, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from secureafl.core.errors import DataError
from secureafl.core.types import Data
from secureafl.tasks.classification import Classification
from secureafl.tasks.in_memory import Samples, from_tensors, with_mirrors
from secureafl.tasks.jpegs import read_jpegs
from secureafl.tasks.models.resnet import Norm, ResNet20
from secureafl.tasks.places import find_folder

_CLASSES = 200


@dataclass(frozen=True)
class TinyImagenet(Classification):
    """Tiny-ImageNet with ResNet-20."""

    data_dir: str = ""  # folder of tiny-imagenet-200
    norm: Norm = "batch"
    mirrored: bool = False  # whether mirror images are trained on as well

    def folder(self) -> Path:
        """Return the folder that holds the data set."""
        return find_folder("tiny_imagenet", self.data_dir, ["tiny-imagenet-200/wnids.txt"])

    def load(self) -> Data:
        """Read the data set."""
        folder = self.folder()
        test = _samples(_test_files(folder, _numbers(folder)), folder, "test")
        return from_tensors(self._training_samples(folder), test, str(folder))

    def client_samples(self, folder: Path) -> Samples:
        """Return the training samples that a deployed client has in a folder."""
        return self._training_samples(replace(self, data_dir=str(folder)).folder())

    def _training_samples(self, folder: Path) -> Samples:
        train = _samples(_training_files(folder, _numbers(folder)), folder, "training")
        return with_mirrors(train) if self.mirrored else train

    def model(self) -> torch.nn.Module:
        """Return ResNet-20, freshly initialised."""
        return ResNet20(_CLASSES, self.norm)


Labelled = list[tuple[Path, int]]


def _numbers(folder: Path) -> dict[str, int]:
    """Return the number of each class: by name, as tools number them that see only folders."""
    number = {name: i for i, name in enumerate(sorted(_lines(folder / "wnids.txt")))}
    if len(number) != _CLASSES:
        raise DataError(f"{folder}/wnids.txt: {len(number)} classes, not {_CLASSES}")
    return number


def _training_files(folder: Path, number: dict[str, int]) -> Labelled:
    return [
        (path, label)
        for name, label in number.items()
        for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
    ]


def _test_files(folder: Path, number: dict[str, int]) -> Labelled:
    notes = folder / "val" / "val_annotations.txt"
    found = []
    for line, text in enumerate(_lines(notes), 1):
        file, _, rest = text.partition("\t")
        name = rest.partition("\t")[0]
        if name not in number or Path(file).name != file:
            raise DataError(f"{notes}, line {line}: damaged; fetch the data set again")
        found.append((folder / "val" / "images" / file, number[name]))
    return found


def _samples(files: Labelled, folder: Path, part: str) -> Samples:
    if not files:
        raise DataError(f"{folder}: no {part} images; fetch the data set again")
    images = read_jpegs([path for path, _ in files], folder, lambda image: image)
    return torch.from_numpy(images), torch.from_numpy(np.array([label for _, label in files]))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: cannot be read; fetch the data set again") from error
