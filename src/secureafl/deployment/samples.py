"""A deployed client's own samples, measured by what the server says of its data.

A client has training samples only. How inputs are standardised is the server's matter: clients
that each took the mean of their own samples would train different models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from secureafl.core.errors import ConfigError, DataError
from secureafl.core.types import Data
from secureafl.settings import short_name
from secureafl.tasks.samples import Samples, read_samples

if TYPE_CHECKING:
    from secureafl.core.protocols import Task

ARCHIVE = ".npz"  # a file of NumPy's with the arrays inputs and labels
_COLUMNS = ("inputs", "labels")


@runtime_checkable
class ReadsClients(Protocol):
    """A task that can read what a client has in a folder of its own."""

    def client_samples(self, folder: Path) -> Any:
        """Training samples, (inputs, labels) or any other form that `secureafl.fit` takes."""
        ...


class InputFacts(NamedTuple):
    """What the server says of its data, in every request."""

    dtype: str  # of raw inputs: uint8, float32 or int64
    shape: tuple[int, ...]  # of one raw input
    classes: int  # 0: labels are numbers
    mean: tuple[float, ...]  # of each channel, as `Data` has them
    std: tuple[float, ...]

    @classmethod
    def of(cls, data: Data) -> InputFacts:
        """The facts of the server's data."""
        inputs, labels = data.train_inputs, data.train_labels
        return cls(
            str(inputs.dtype).removeprefix("torch."),
            tuple(inputs.shape[1:]),
            0 if labels.is_floating_point() else int(max(labels.max(), data.test_labels.max())) + 1,
            tuple(data.pixel_mean.tolist()),
            tuple(data.pixel_std.tolist()),
        )

    def to_json(self) -> str:
        """As requests carry them."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> InputFacts:
        """Those of a request."""
        try:
            fields: dict[str, Any] = json.loads(text)
            shape, mean, std = (tuple(fields[name]) for name in ("shape", "mean", "std"))
            return cls(str(fields["dtype"]), shape, int(fields["classes"]), mean, std)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError("the server does not say how its inputs look") from None

    def standardise(self, data: Data) -> Data:
        """The data, with the server's mean and deviation for its own."""
        return data._replace(pixel_mean=torch.tensor(self.mean), pixel_std=torch.tensor(self.std))


def read_client_data(task: Task, place: Path, facts: InputFacts) -> Data:
    """The client's own samples at a place, if they are of the server's kind; no test data."""
    inputs, labels = _read(task, place)
    _require_alike(inputs, labels, place, facts)
    own = (inputs, labels, inputs[:0], labels[:0])
    statistics = torch.tensor(facts.mean), torch.tensor(facts.std)
    return Data(*own, *statistics, source=str(place), fingerprint="")


def _read(task: Task, place: Path) -> Samples:
    if place.suffix == ARCHIVE:
        return read_samples(_read_archive(place), str(place), _COLUMNS)
    if not isinstance(task, ReadsClients):
        remedy = f"add one, or give a file {ARCHIVE} with inputs and labels"
        name = short_name(task)
        raise ConfigError(
            f"--data {place}: the task {name} has no client_samples(folder); {remedy}"
        )
    return read_samples(task.client_samples(place), str(place))


def _read_archive(place: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(place, allow_pickle=False) as file:  # a pickle could run anything
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        remedy = "write it with numpy.savez(FILE, inputs=..., labels=...)"
        raise DataError(f"{place}: cannot be read ({error}); {remedy}") from None


def _require_alike(
    inputs: torch.Tensor, labels: torch.Tensor, place: Path, facts: InputFacts
) -> None:
    """Raise unless samples could be the server's own."""
    dtype, shape = str(inputs.dtype).removeprefix("torch."), tuple(inputs.shape[1:])
    if (dtype, shape) != (facts.dtype, facts.shape):
        here, there = f"{dtype} {shape}", f"{facts.dtype} {facts.shape}"
        raise DataError(f"{place}: an input is {here} here, and {there} in the server's run")
    whole = not labels.is_floating_point()
    if whole != bool(facts.classes):
        kind = "classes from 0" if facts.classes else "float numbers"
        raise DataError(f"{place}: labels are {labels.dtype}; in the server's run they are {kind}")
    if whole and not 0 <= int(labels.min()) <= int(labels.max()) < facts.classes:
        found = f"labels from {int(labels.min())} to {int(labels.max())}"
        raise DataError(f"{place}: {found}; the server's run has 0 to {facts.classes - 1}")
