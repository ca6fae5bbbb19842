"""By recording: clients hold whole recordings, as evenly as their number allows.

In the paper each client is a company with cars of its own, and trains on what these recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secureafl.core.errors import ConfigError
from secureafl.partitions.shards import Shards, rows_of


@dataclass(frozen=True)
class ByRecording:
    """Assigns whole recordings to clients."""

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        origin: np.ndarray | None = None,
    ) -> Shards:
        """Assign every training sample to a client."""
        if origin is None:
            remedy = 'choose "label_groups", "dirichlet" or "iid"'
            raise ConfigError(f"partition = 'by_recording': the task has no recordings; {remedy}")
        recordings, number = np.unique(origin, return_inverse=True)
        if num_clients > len(recordings):
            known = f"there are only {len(recordings)} recordings"
            raise ConfigError(f"clients = {num_clients}: {known}; give at most as many clients")
        owner = rng.permutation(np.arange(len(recordings)) % num_clients)
        return Shards(rows_of(owner[number], num_clients), np.arange(num_clients))
