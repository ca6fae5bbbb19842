"""A module and samples in memory, as `secureafl.fit` is given them.

Its settings tell what was given and hold none of it: a run folder can be read and compared, but
such a task cannot be made again from them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from secureafl.core.errors import RunError
from secureafl.core.types import Data

KIND = "arrays"  # the name of this file, which stands for the class in settings


class Given(NamedTuple):
    """What a task of this kind is made of."""

    module: nn.Module
    data: Data
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], Mapping[str, float]]


@dataclass(frozen=True)
class Arrays:
    """A module and samples of one's own; the settings are checksums and names."""

    module: str  # the name of its class
    weights_checksum: str  # of those it starts from
    samples_checksum: str  # of training and test samples
    module_checksum: str  # of its layers, their settings and their code, and of the weights
    loss_checksum: str  # of what it does
    metrics_checksum: str  # the same
    loss_name: str = ""
    standardised: bool = True
    given: InitVar[Given | None] = None

    def __post_init__(self, given: Given | None) -> None:
        if given is None:
            raise RunError(f"task = {KIND!r}: a module and arrays, which secureafl.fit takes")
        object.__setattr__(self, "_given", given)

    @property
    def _parts(self) -> Given:
        return self.__dict__["_given"]

    def load(self) -> Data:
        """Return the samples."""
        return self._parts.data

    def model(self) -> nn.Module:
        """Return a copy of the module, with the weights it was given with."""
        return copy.deepcopy(self._parts.module)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self._parts.loss(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the metrics of the test set."""
        found = self._parts.metrics(outputs, labels)
        return {name: float(value) for name, value in found.items()}


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean squared error of a regression; outputs may be one column."""
    return mse_loss(outputs.reshape(labels.shape), labels)


def root_squared_error(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """The root of the mean squared error (RMSE)."""
    return {"rmse": float(squared_error(outputs.double(), labels.double()).sqrt())}


def refuse_arrays(stored: Mapping[str, Any], where: object, remedy: str) -> None:
    """Raise if the settings of a run are of such a task, which cannot be made again from them."""
    task = stored.get("task", {})
    if (task.get("kind") if isinstance(task, Mapping) else task) == KIND:
        raise RunError(f"{where}: a run of secureafl.fit, whose module is not in it; {remedy}")
