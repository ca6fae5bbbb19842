"""CIFAR-10: 32 x 32 colour images of ten kinds of things and animals.

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

_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LAYOUTS = (
    Layout("cifar-10-batches-bin", tuple(f"{name}.bin" for name in _BATCHES), "test_batch.bin", 1),
    Layout("cifar-10-batches-py", _BATCHES, "test_batch", "labels"),
)


@dataclass(frozen=True)
class Cifar10(Classification):
    """CIFAR-10 with ResNet-20."""

    data_dir: str = ""  # folder of cifar-10-batches-bin or cifar-10-batches-py
    norm: Norm = "batch"
    mirrored: bool = False  # whether mirror images are trained on as well

    def folder(self) -> Path:
        """Return the folder that holds the data set."""
        return find_layout("cifar10", self.data_dir, _LAYOUTS)[0]

    def load(self) -> Data:
        """Read the data set."""
        folder, layout = find_layout("cifar10", self.data_dir, _LAYOUTS)
        return load_layout(folder, layout, 10, self.mirrored)

    def client_samples(self, folder: Path) -> Samples:
        """Return the training samples that a deployed client has in a folder."""
        place, layout = find_layout("cifar10", str(folder), _LAYOUTS)
        return load_training(place, layout, 10, self.mirrored)

    def model(self) -> torch.nn.Module:
        """Return ResNet-20, freshly initialised."""
        return ResNet20(10, self.norm)
