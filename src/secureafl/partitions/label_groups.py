"""The paper's label skew: groups of clients that hold mostly one label.

Clients are split at random into as many groups as there are classes. A sample of label q goes to
group q with probability `degree`, to each other group with the same share of the rest, and there
to any client. With fewer clients than classes, groups hold several labels.

Fang, Cao, Jia, Gong, "Local model poisoning attacks to Byzantine-robust federated learning",
USENIX Security 2020.
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
class LabelGroups:
    """Assigns mostly one label to each group of clients."""

    degree: float = 0.5  # x; 1 / classes is IID, 1 gives every group its own labels only

    def __post_init__(self) -> None:
        require(0 <= self.degree <= 1, "degree", self.degree, "give a probability from 0 to 1")

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        origin: np.ndarray | None = None,
    ) -> Shards:
        """Assign every training sample to a client."""
        require_classes(labels, "label_groups")
        require_enough(labels, num_clients)
        groups = min(int(labels.max()) + 1, num_clients)
        group = rng.permutation(np.arange(num_clients) % groups)
        own = labels % groups
        # Among the other groups, each is as likely: a random non-zero offset.
        away = (own + rng.integers(1, max(groups, 2), len(labels))) % groups
        chosen = np.where(rng.random(len(labels)) < self.degree, own, away)
        client = np.empty(len(labels), int)
        for g in range(groups):
            members = np.flatnonzero(group == g)
            here = chosen == g
            client[here] = rng.choice(members, int(here.sum()))
        fill_idle_clients(client, num_clients)
        return Shards(rows_of(client, num_clients), group)
