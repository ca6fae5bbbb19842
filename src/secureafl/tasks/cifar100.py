"""CIFAR-100: 32 x 32 colour images of a hundred kinds of things and animals.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from secureafl.core.types import Data
from secureafl.tasks.cifar import Layout, find_layout, load_layout, load_training
from secureafl.tasks.classification import Classification
from secureafl.tasks.in_memory import Samples
from secureafl.tasks.models.resnet import Norm, ResNet20

_LAYOUTS = (
    Layout("cifar-100-binary", ("train.bin",), "test.bin", 2),
    Layout("cifar-100-python", ("train",), "test", "fine_labels"),
)


@dataclass(frozen=True)
class Cifar100(Classification):
    """CIFAR-100, its fine labels, with ResNet-20."""

    data_dir: str = ""  # folder of cifar-100-binary or cifar-100-python
    norm: Norm = "batch"
    mirrored: bool = False  # whether mirror images are trained on as well

    def folder(self) -> Path:
        """Return the folder that holds the data set."""
        return find_layout("cifar100", self.data_dir, _LAYOUTS)[0]

    def load(self) -> Data:
        """Read the data set."""
        folder, layout = find_layout("cifar100", self.data_dir, _LAYOUTS)
        return load_layout(folder, layout, 100, self.mirrored)

    def client_samples(self, folder: Path) -> Samples:
        """Return the training samples that a deployed client has in a folder."""
        place, layout = find_layout("cifar100", str(folder), _LAYOUTS)
        return load_training(place, layout, 100, self.mirrored)

    def model(self) -> torch.nn.Module:
        """Return ResNet-20, freshly initialised."""
        return ResNet20(100, self.norm)
