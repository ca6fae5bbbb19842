"""Tasks that train in milliseconds: three kinds of 6 x 6 noise and a linear model."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from secureafl.core.types import Data


@dataclass(frozen=True)
class TinyTask:
    """`kind = "reference.tiny_task:TinyTask"`."""

    train: int = 90
    test: int = 30

    def load(self):
        rng = np.random.default_rng(5)
        images, labels = [], []
        for count in (self.train, self.test):
            y = np.arange(count) % 3
            x = rng.integers(0, 160, (count, 1, 6, 6))
            x[:, 0, :2] += 40 * y[:, None, None]
            images.append(torch.from_numpy(x.astype(np.uint8)))
            labels.append(torch.from_numpy(y))
        mean, std = torch.tensor([0.3]), torch.tensor([0.2])
        return Data(
            images[0], labels[0], images[1], labels[1], mean, std, "tiny noise", f"{self.train:08x}"
        )

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def loss(self, outputs, labels):
        return cross_entropy(outputs, labels)

    def metrics(self, outputs, labels):
        return {"ter": float((outputs.argmax(dim=1) != labels).double().mean())}


@dataclass(frozen=True)
class TinyRegression(TinyTask):
    """The same noise; its kind is a number to be told."""

    def load(self):
        data = super().load()
        return data._replace(
            train_labels=data.train_labels.float() - 1, test_labels=data.test_labels.float() - 1
        )

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 1), nn.Flatten(0))

    def loss(self, outputs, labels):
        return mse_loss(outputs, labels)

    def metrics(self, outputs, labels):
        return {"mse": float(mse_loss(outputs, labels))}


@dataclass(frozen=True)
class TinyNormed(TinyTask):
    """A model with batch normalisation, and so with running statistics."""

    norm: str = "batch"

    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), NORMS[self.norm](), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        )


NORMS = {
    "batch": lambda: nn.BatchNorm2d(4, momentum=0.1),
    "counting": lambda: nn.BatchNorm2d(4, momentum=None),
    "instance": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "without statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "dropout": lambda: nn.Dropout(0.5),
}
