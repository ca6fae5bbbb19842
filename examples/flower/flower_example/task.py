"""The user's model and data. The server needs them too: to start from, and to measure with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from secureafl.core.types import Data
from secureafl.tasks.in_memory import from_tensors

CLASSES, FEATURES = 4, 12


def make_model() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def make_samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points around one centre per class."""
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + torch.randn(count, FEATURES, generator=generator), labels


@dataclass(frozen=True)
class Points:
    """`kind = "flower_example.task:Points"`."""

    def load(self) -> Data:
        """The server's samples: it only tests."""
        return from_tensors(make_samples(100, 1), make_samples(500, 2), "points")

    def model(self) -> nn.Module:
        """The model everybody starts from."""
        return make_model()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch."""
        return cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Test error rate."""
        return {"ter": float((outputs.argmax(dim=1) != labels).double().mean())}
