"""The result of a partition, and the checks that all partitions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from secureafl.core.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Int


class Shards(NamedTuple):
    """The training samples that each client holds."""

    rows: list[Int[np.ndarray, " samples"]]  # indices of each client's samples
    group: Int[np.ndarray, " n"]  # clients with the same number hold similar data


def require_enough(labels: np.ndarray, num_clients: int) -> None:
    """Raise unless there is a sample for every client."""
    if num_clients > len(labels):
        remedy = f"there are only {len(labels)} training samples; give that many or fewer"
        raise ConfigError(f"clients = {num_clients}: {remedy}")


def require_classes(labels: np.ndarray, partition: str) -> None:
    """Raise if the labels are real numbers, as in a regression."""
    if labels.dtype.kind == "f":
        remedy = 'choose "by_recording" or "iid"'
        raise ConfigError(f"partition = {partition!r}: the task has no classes; {remedy}")


def fill_idle_clients(client: np.ndarray, num_clients: int) -> None:
    """Move one sample of the largest client to each client that has none."""
    for poor in np.flatnonzero(np.bincount(client, minlength=num_clients) == 0):
        rich = np.bincount(client, minlength=num_clients).argmax()
        client[np.flatnonzero(client == rich)[0]] = poor


def rows_of(client: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Return the indices of each client's samples, given the client of each sample."""
    return [np.flatnonzero(client == i) for i in range(num_clients)]
