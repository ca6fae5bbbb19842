"""CIFAR-100: 32 x 32 colour images of a hundred kinds of things and animals.

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


@dataclass(frozen=True)
class Cifar100(Classification):
    """CIFAR-100, its fine labels, with ResNet-20."""

    data_dir: str = ""  # folder of cifar-100-python
    norm: Norm = "batch"
    mirrored: bool = False  # whether mirror images are trained on as well

    def folder(self) -> Path:
        """Where the data set lies."""
        return find_folder("cifar100", self.data_dir, "cifar-100-python", "train")

    def load(self) -> Data:
        """Read the data set."""
        folder = self.folder()
        return load_batches(folder, ["train"], "test", "fine_labels", 100, self.mirrored)

    def model(self) -> torch.nn.Module:
        """ResNet-20."""
        return ResNet20(100, self.norm)
