"""Fashion-MNIST with a model so small that a thousand clients fit beside everything else."""

from dataclasses import dataclass

from torch import nn

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
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
