"""What each arrival trains on, drawn before training like the schedule itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from secureafl.core.random import numpy_generator

if TYPE_CHECKING:
    from jaxtyping import Int

    from secureafl.arrivals.trace import Trace

# Where in a job the round and the attacker's number stand, and where its batch begins.
ROUND, ATTACKER, ROWS = 2, 3, 4


def draw_batches(
    client: Int[np.ndarray, " rounds"],
    shards: list[Int[np.ndarray, " samples"]],
    batch_size: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "rounds batch"]:
    """Training rows of every arrival: each client passes over its samples, reshuffled each pass."""
    rows = np.empty((len(client), batch_size), np.int32)
    for i, shard in enumerate(shards):
        turns = np.flatnonzero(client == i)
        passes = -(-len(turns) * batch_size // len(shard))
        order = rng.permuted(np.tile(shard, (passes, 1)), axis=1).reshape(-1)
        rows[turns] = order[: len(turns) * batch_size].reshape(-1, batch_size)
    return rows


def own_batch(
    shard: Int[np.ndarray, " samples"], count: int, seed: int, client: int, version: int
) -> Int[np.ndarray, " count"]:
    """Training rows for one request to a client that keeps no memory of the ones before."""
    rng = numpy_generator(seed, f"batch/{client}/{version}")
    return rng.choice(shard, count, replace=len(shard) < count)


def pack_jobs(
    trace: Trace, attacker_index: Int[np.ndarray, " n"], batches: Int[np.ndarray, "rounds batch"]
) -> Int[np.ndarray, "rounds numbers"]:
    """All that tells one arrival from another: client, staleness, round, attacker, training rows.

    `attacker_index` is each client's number among the attackers, of no use if it is honest.
    """
    rounds = np.arange(len(trace.client))
    numbers = (trace.client, rounds - trace.version, rounds, attacker_index[trace.client])
    return np.concatenate([np.stack(numbers, axis=1), batches], axis=1)
