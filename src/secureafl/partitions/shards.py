"""The result of a partition, and the checks that all partitions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from secureafl.core.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Int


class Shards(NamedTuple):
    """The training samples that each client holds, as a partition deals them out.

    >>> import numpy
    >>> labels, rng = numpy.arange(6) % 2, numpy.random.default_rng(0)
    >>> dealt = secureafl.partitions.Iid().deal(labels, 3, rng)
    >>> isinstance(dealt, secureafl.Shards), [len(rows) for rows in dealt.rows]
    (True, [2, 2, 2])
    """

    rows: list[Int[np.ndarray, " samples"]]  # indices of each client's samples
    group: Int[np.ndarray, " n"]  # clients with the same number hold similar data


def checked(dealt: object, samples: int, num_clients: int) -> Shards:
    """The result of any partition, if each client has samples of its own; some may be left out."""
    if not isinstance(dealt, Shards):
        remedy = "give secureafl.Shards(rows, group)"
        raise ConfigError(f"partition: it deals a {type(dealt).__name__}; {remedy}")
    rows = [_whole(own, f"the rows of client {i}") for i, own in enumerate(dealt.rows)]
    if len(rows) != num_clients:
        remedy = f"give an array of rows for each of {num_clients} clients"
        raise ConfigError(f"partition: it deals {len(rows)} shards; {remedy}")
    group = _whole(dealt.group, "the groups")
    if len(group) != num_clients or group.min() < 0:
        told = f"{len(group)} groups from {group.min()}"
        raise ConfigError(f"partition: it gives {told}; give a number from 0 for each client")
    _refuse_strange_rows(np.concatenate(rows), samples)
    return Shards(rows, group)


def _whole(values: object, what: str) -> np.ndarray:
    """Whole numbers as an array; raises if they are anything else, or none."""
    found = np.asarray(values)
    if found.ndim != 1 or not len(found):
        remedy = "give each client at least one sample"
        raise ConfigError(f"partition: {what} have the shape {found.shape}; {remedy}")
    if found.dtype.kind not in "iu":
        remedy = "give indices, numpy.flatnonzero(mask) of a mask"
        raise ConfigError(f"partition: {what} are {found.dtype}; {remedy}")
    return found.astype(np.int64, copy=False)


def _refuse_strange_rows(rows: np.ndarray, samples: int) -> None:
    lowest, highest = rows.min(), rows.max()
    if lowest < 0 or highest >= samples:
        reach = f"rows reach from {lowest} to {highest}"
        raise ConfigError(f"partition: {reach}; number the {samples} samples from 0")
    times = np.bincount(rows)
    if times.max() > 1:
        told = f"row {times.argmax()} is dealt {times.max()} times"
        raise ConfigError(f"partition: {told}; deal each sample to one client")


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
