"""A task of your own: which of three spiral arms a point belongs to.

Try it from this folder:

    secureafl run --task my_task:Spirals --set task.turns=0.8 --attack sign_flip \
        --rounds 2000 --clients 10 --set training.learning_rate=0.1
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from secureafl import Data, from_tensors, require


@dataclass(frozen=True)
class Spirals:
    """Points of the plane, three classes, a small network with batch normalisation."""

    turns: float = 1.0
    hidden: int = 64

    def __post_init__(self) -> None:
        require(self.turns > 0, "turns", self.turns, "give a number above 0")

    def load(self) -> Data:
        train, test = self._points(3000, seed=0), self._points(600, seed=1)
        return from_tensors(train, test, f"spirals of {self.turns} turns")

    def model(self) -> nn.Module:
        wide = self.hidden
        first = [nn.Linear(2, wide), nn.BatchNorm1d(wide), nn.ReLU()]
        second = [nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU()]
        return nn.Sequential(*first, *second, nn.Linear(wide, 3))

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"ter": float((outputs.argmax(dim=1) != labels).double().mean())}

    def _points(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        rng = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % 3
        radius = torch.rand(count, generator=rng) + 0.1
        angle = 2 * math.pi * (self.turns * radius + labels / 3)
        noise = 0.05 * torch.randn(count, 2, generator=rng)
        return radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1) + noise, labels
