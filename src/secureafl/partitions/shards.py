"""What a partition makes of the training samples, and what all of them check."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from secureafl.core.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Int


class Shards(NamedTuple):
    """Who holds what."""

    rows: list[Int[np.ndarray, " samples"]]  # of each client
    group: Int[np.ndarray, " n"]  # clients with the same number hold much the same


def require_enough(labels: np.ndarray, num_clients: int) -> None:
    """Raise unless there is a sample for every client."""
    if num_clients > len(labels):
        raise ConfigError(f"clients = {num_clients}: there are only {len(labels)} training samples")


def require_classes(labels: np.ndarray, partition: str) -> None:
    """Raise if the labels are numbers."""
    if labels.dtype.kind == "f":
        remedy = 'choose "by_recording" or "iid"'
        raise ConfigError(f"partition = {partition!r}: the task has no classes; {remedy}")


def fill_idle_clients(client: np.ndarray, num_clients: int) -> None:
    """Give each client without a sample one of the richest client's."""
    for poor in np.flatnonzero(np.bincount(client, minlength=num_clients) == 0):
        rich = np.bincount(client, minlength=num_clients).argmax()
        client[np.flatnonzero(client == rich)[0]] = poor


def rows_of(client: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """The samples of each client, from the client of each sample."""
    return [np.flatnonzero(client == i) for i in range(num_clients)]
