"""CIFAR-10: 32 x 32 colour images of ten kinds of things and animals.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from secureafl.core.types import Data
from secureafl.tasks.cifar import load_batches
from secureafl.tasks.classification import Classification
from secureafl.tasks.models.resnet import Norm, ResNet20
from secureafl.tasks.places import find_folder

_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))


@dataclass(frozen=True)
class Cifar10(Classification):
    """CIFAR-10 with ResNet-20."""

    data_dir: str = ""  # folder of cifar-10-batches-py
    norm: Norm = "batch"
    mirrored: bool = False  # whether mirror images are trained on as well

    def folder(self) -> Path:
        """Where the data set lies."""
        return find_folder("cifar10", self.data_dir, "cifar-10-batches-py", _TRAIN[0])

    def load(self) -> Data:
        """Read the data set."""
        folder = self.folder()
        return load_batches(folder, _TRAIN, "test_batch", "labels", 10, self.mirrored)

    def model(self) -> torch.nn.Module:
        """ResNet-20."""
        return ResNet20(10, self.norm)
