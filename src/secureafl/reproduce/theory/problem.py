"""Ridge regression in which every constant of Theorem 1 is known exactly.

All clients measure at the same points and differ in what they measure. So the gradients of two
clients differ by the same vector at every model, and the noise of an upload does not depend on the
model either: zeta and sigma hold for all models, as the theorem asks. (With points of its own for
every client both would grow without bound as the model moves away.)
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from secureafl.core.errors import require
from secureafl.core.random import numpy_generator
from secureafl.core.types import Data
from secureafl.partitions.shards import Shards

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Measurements(NamedTuple):
    """The data of all clients."""

    points: Float[np.ndarray, "rows d"]  # the ridge as further rows, whose targets are 0
    targets: Float[np.ndarray, "n batches rows"]
    count: int  # rows that are not the ridge's


@dataclass(frozen=True)
class RidgeRegression:
    """A task: one sample is a mini-batch, all points measured once."""

    seed: int = 0
    clients: int = 20
    parameters: int = 10  # d
    points: int = 20  # measured in a mini-batch
    batches: int = 16  # of each client, every second one with the opposite errors of its neighbour
    ridge: float = 0.1
    spread: float = 0.3  # of the clients' own optima around a common one, per coordinate
    noise: float = 0.3  # sigma: how far the gradient of each mini-batch is from its client's

    def __post_init__(self) -> None:
        require(self.clients >= 1, "clients", self.clients, "give 1 or more")
        require(self.parameters >= 1, "parameters", self.parameters, "give 1 or more")
        enough, remedy = self.points >= self.parameters, f"give {self.parameters} or more"
        require(enough, "points", self.points, remedy)
        paired = self.batches >= 2 and self.batches % 2 == 0
        require(paired, "batches", self.batches, "give an even number, 2 or more")
        for name in ("ridge", "spread", "noise"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "give 0 or more")

    def measurements(self) -> Measurements:
        """Draw the data; the same seed gives the same."""
        rng = numpy_generator(self.seed, "ridge regression")
        count, size = self.points, self.parameters
        points = rng.normal(size=(count, size))
        optima = rng.normal(size=size) + self.spread * rng.normal(size=(self.clients, size))
        errors = rng.normal(size=(self.clients, self.batches // 2, count))
        # Scaled so that each one moves the gradient by sigma; pairs cancel.
        errors *= self.noise / np.linalg.norm(errors @ points / count, axis=-1, keepdims=True)
        errors = np.stack([errors, -errors], axis=2).reshape(self.clients, self.batches, count)
        targets = (optima @ points.T)[:, None] + errors
        ridge = np.sqrt(count * self.ridge) * np.eye(size)
        padding = np.zeros((self.clients, self.batches, size))
        return Measurements(
            np.concatenate([points, ridge]), np.concatenate([targets, padding], axis=2), count
        )

    def load(self) -> Data:
        """One target a mini-batch, client after client; the test set is all of them."""
        points, targets, _ = self.measurements()
        labels = torch.from_numpy(targets.reshape(-1, targets.shape[2])).float()
        inputs = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)  # the model has the points
        checksum = zlib.crc32(labels.numpy().tobytes(), zlib.crc32(points.tobytes()))
        plain = torch.zeros(1), torch.ones(1)
        source = f"ridge regression, drawn from seed {self.seed}"
        return Data(inputs, labels, inputs, labels, *plain, source, f"{checksum:08x}")

    def model(self) -> nn.Module:
        """What the weights predict at the points."""
        return _AtPoints(torch.from_numpy(self.measurements().points).float())

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Half the mean square over the points, and half the ridge times the squared weights."""
        return (outputs - labels).square().sum(dim=1).mean() / (2 * self.points)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """The loss of all clients."""
        return {"loss": float(self.loss(outputs, labels))}


class _AtPoints(nn.Module):
    """A linear model at points that are the same for all clients, whatever its input."""

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self.points = points
        self.weight = nn.Parameter(torch.randn(points.shape[1]))

    def forward(self, inputs: Tensor) -> Tensor:
        """The same predictions for every sample."""
        return (self.points @ self.weight).expand(len(inputs), -1)


@dataclass(frozen=True)
class InOrder:
    """A partition: every client gets the next so many samples."""

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        origin: np.ndarray | None = None,
    ) -> Shards:
        """Deal the samples out."""
        rows = np.arange(len(labels)).reshape(num_clients, -1)
        return Shards(list(rows), np.zeros(num_clients, int))


class Objective(NamedTuple):
    """The objective of the honest clients, F_H, and of each client alone; in float64."""

    measured: Measurements
    honest: Bool[np.ndarray, " n"]

    @classmethod
    def of_all(cls, measured: Measurements) -> Objective:
        """The objective when all clients are honest."""
        return cls(measured, np.ones(len(measured.targets), bool))

    @property
    def hessian(self) -> Float[np.ndarray, "d d"]:
        """The Hessian, which is the same for every client."""
        return self.measured.points.T @ self.measured.points / self.measured.count

    @property
    def pulls(self) -> Float[np.ndarray, "n d"]:
        """What is subtracted from `hessian @ weights` in each client's gradient."""
        means = self.measured.targets.mean(axis=1)
        return means @ self.measured.points / self.measured.count

    @property
    def smoothness(self) -> float:
        """L: the largest eigenvalue."""
        return float(np.linalg.eigvalsh(self.hessian)[-1])

    @property
    def heterogeneity(self) -> float:
        """zeta, which is the same at every model."""
        pulls = self.pulls[self.honest]
        return float(np.sqrt(np.square(pulls - pulls.mean(axis=0)).sum(axis=1).mean()))

    @property
    def noise(self) -> float:
        """sigma: the norm of every honest mini-batch's error, at every model."""
        points, targets, count = self.measured
        errors = (targets - targets.mean(axis=1, keepdims=True))[self.honest] @ points / count
        return float(np.linalg.norm(errors, axis=-1).max())

    @property
    def optimum(self) -> Float[np.ndarray, " d"]:
        """The minimiser of F_H."""
        return np.linalg.solve(self.hessian, self.pulls[self.honest].mean(axis=0))

    def value(self, weights: Float[np.ndarray, " d"]) -> float:
        """The value of F_H at these weights."""
        points, targets, count = self.measured
        errors = points @ weights - targets[self.honest]
        return float(np.square(errors).sum(axis=-1).mean() / (2 * count))

    def gap(self, weights: Float[np.ndarray, " d"]) -> float:
        """F_H at these weights less its minimum, without subtracting two nearly equal numbers."""
        away = weights - self.optimum
        return float(away @ self.hessian @ away / 2)
