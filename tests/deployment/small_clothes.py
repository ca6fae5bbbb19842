"""Fashion-MNIST with a model so small that a thousand clients fit beside everything else."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear

from secureafl.tasks.fashion_mnist import FashionMnist

PARAMETERS = 784 * 44 + 44 + 44 * 10 + 10


@dataclass(frozen=True)
class SmallClothes(FashionMnist):
    """Fashion-MNIST with one hidden layer of 44."""

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 44), nn.ReLU(), nn.Linear(44, 10))


@dataclass(frozen=True)
class FewClothes(FashionMnist):
    """One hidden layer of 16, on the samples that come with the package."""

    data_dir: str = "embedded"

    def model(self):
        return InOneArray()


@dataclass(frozen=True)
class OneLayer(FashionMnist):
    """A single linear layer, on the samples that come with the package."""

    data_dir: str = "embedded"

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


class InOneArray(nn.Module):
    """One hidden layer of 16, as one array: Flower takes requests of their own for each."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(784, 16), nn.Linear(16, 10)
        parts = [part.detach().reshape(-1) for layer in layers for part in layer.parameters()]
        self.numbers = nn.Parameter(torch.cat(parts))

    def forward(self, images):
        first, bias, last, last_bias = self.numbers.split([784 * 16, 16, 16 * 10, 10])
        hidden = linear(images.flatten(1), first.view(16, 784), bias).relu()
        return linear(hidden, last.view(10, 16), last_bias)
