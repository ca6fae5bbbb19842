"""Models of the paper."""

from torch import nn


def paper_cnn() -> nn.Module:
    """The CNN for 28 x 28 grey images, without padding: 139,960 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 30, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(30, 50, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5 * 5 * 50, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
