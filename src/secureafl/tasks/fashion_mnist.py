"""Fashion-MNIST: 28 x 28 grey images of ten kinds of clothing.

Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning
algorithms", 2017 (MIT licence). A class-balanced slice of it, 10,000 training and 2,000 test
images, ships with the package, so that everything runs without a download.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from secureafl.core.errors import DataError
from secureafl.core.types import Data
from secureafl.tasks.classification import Classification
from secureafl.tasks.idx import find_idx, read_idx
from secureafl.tasks.in_memory import Samples, from_tensors
from secureafl.tasks.models.cnn import Size, paper_cnn
from secureafl.tasks.places import data_home, require_folder

EMBEDDED = Path(__file__).parent / "data" / "fashion_mnist"

_PARTS = ("train", "t10k")
_KINDS = ("images-idx3", "labels-idx1")
_STEMS = tuple(f"{part}-{kind}-ubyte" for part in _PARTS for kind in _KINDS)


@dataclass(frozen=True)
class FashionMnist(Classification):
    """Fashion-MNIST with the paper's CNN."""

    data_dir: str = ""  # folder of the IDX files; "" looks around, "embedded" takes the slice
    cnn: Size = "140k"  # parameters; the wider ones are for tables of running times

    def folder(self) -> Path:
        """Return the folder that holds the data set."""
        return self._find()[0]

    def load(self) -> Data:
        """Read the data set."""
        folder, source = self._find()
        train, test = (_read(folder, part) for part in _PARTS)
        return from_tensors(train, test, source)

    def client_samples(self, folder: Path) -> Samples:
        """Return the training samples that a deployed client has in a folder."""
        return _read(replace(self, data_dir=str(folder)).folder(), "train")

    def model(self) -> torch.nn.Module:
        """Return the paper's CNN, freshly initialised."""
        return paper_cnn(self.cnn)

    def _find(self) -> tuple[Path, str]:
        if self.data_dir == "embedded":
            return EMBEDDED, "embedded slice"
        if self.data_dir:
            folder = require_folder(self.data_dir)
            # torchvision's layout below its root, and that of 'secureafl data'
            nested = (folder / "FashionMNIST" / "raw", folder / "fashion-mnist")
            return next((place for place in nested if place.is_dir()), folder), "data_dir"
        for folder, source in _usual_places():
            if all(find_idx(folder, stem) for stem in _STEMS):
                return folder, source
        return EMBEDDED, "embedded slice"


def _usual_places() -> list[tuple[Path, str]]:
    debian = Path("/usr/share/datasets/fashion-mnist")
    home = data_home()
    return [
        (home / "FashionMNIST" / "raw", "torchvision's folder"),
        (home / "fashion-mnist", "data folder"),
        (debian, "Debian's package dataset-fashion-mnist"),
    ]


def _read(folder: Path, part: str) -> Samples:
    arrays = []
    for stem in (f"{part}-{kind}-ubyte" for kind in _KINDS):
        path = find_idx(folder, stem)
        if path is None:
            raise DataError(f"{folder}: no file {stem} or {stem}.gz; see data_dir")
        arrays.append(read_idx(path))
    images, labels = arrays
    fits = images.shape[1:] == (28, 28) and labels.shape == images.shape[:1] and len(labels) > 0
    if not fits or labels.max() > 9:
        named = "training" if part == "train" else "test"
        raise DataError(f"{folder}: the {named} files are not Fashion-MNIST; fetch them again")
    return _samples(images, labels)


def _samples(images: np.ndarray, labels: np.ndarray) -> Samples:
    return torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels.astype(np.int64))
