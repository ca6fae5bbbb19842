"""Dirichlet: the shares of each label that the clients hold are drawn at random.

Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secureafl.core.errors import require
from secureafl.partitions.shards import (
    Shards,
    fill_idle_clients,
    require_classes,
    require_enough,
    rows_of,
)


@dataclass(frozen=True)
class Dirichlet:
    """Draws the clients' shares of each label from a Dirichlet distribution."""

    concentration: float = 0.5  # small: each label with few clients; large: like IID

    def __post_init__(self) -> None:
        value = self.concentration
        require(1e-3 <= value <= 1e6, "concentration", value, "give 0.001 to 1,000,000")

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        origin: np.ndarray | None = None,
    ) -> Shards:
        """Assign every training sample to a client."""
        require_classes(labels, "dirichlet")
        require_enough(labels, num_clients)
        client = np.empty(len(labels), int)
        for label in np.unique(labels):
            here = labels == label
            shares = rng.dirichlet(np.full(num_clients, self.concentration))
            client[here] = rng.choice(num_clients, int(here.sum()), p=shares)
        fill_idle_clients(client, num_clients)
        rows = rows_of(client, num_clients)
        return Shards(rows, np.array([np.bincount(labels[own]).argmax() for own in rows]))
