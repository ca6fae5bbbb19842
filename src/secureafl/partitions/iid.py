"""IID: every client holds the same number of samples, drawn uniformly from all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secureafl.partitions.shards import Shards, require_enough


@dataclass(frozen=True)
class Iid:
    """Assigns samples uniformly at random."""

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        origin: np.ndarray | None = None,
    ) -> Shards:
        """Assign every training sample to a client."""
        require_enough(labels, num_clients)
        parts = np.array_split(rng.permutation(len(labels)), num_clients)
        return Shards([np.sort(rows) for rows in parts], np.zeros(num_clients, int))
