"""RFLBAT: cluster the updates in the plane of their two principal components.

Clients far from all others in that plane are left out; k-means splits the rest, and the cluster
whose members point least alike is kept, since those who share a backdoor point more alike than
those who share only the task; a client far from the others in it is left out too. The rest is
averaged.

With one or two clients there is nothing to cluster, and the mean is taken.

Wang, Zhai, Zhan, Wang, "RFLBAT: a robust federated learning algorithm against backdoor attack",
arXiv 2201.03772, 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from secureafl.aggregators.clustering import natural_clusters, scikit_learn
from secureafl.core.errors import require
from secureafl.core.random import numpy_generator
from secureafl.linalg.pairwise import cosines, inner_products
from secureafl.linalg.rows import masked, mean_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Rflbat:
    """Mean of the least uniform cluster without outliers; remembers how often it drew."""

    first_cut: float = 10.0  # times the median sum of distances to the others
    second_cut: float = 4.0  # the same inside the cluster

    on_host = True

    def __post_init__(self) -> None:
        for name in ("first_cut", "second_cut"):
            cut = getattr(self, name)
            require(1 <= cut < np.inf, name, cut, "give a factor of 1 or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Int[Tensor, ""]:
        scikit_learn()  # better now than in the middle of a run
        return torch.zeros((), dtype=torch.int64, device=weights.device)

    def aggregate(
        self, state: Int[Tensor, ""], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Int[Tensor, ""]]:
        kept = torch.nonzero(present).flatten().cpu().numpy()
        if len(kept) > 2:
            kept = kept[self._accepted(values[present], int(state))]
        chosen = torch.zeros_like(present)
        chosen[torch.from_numpy(kept).to(chosen.device)] = True
        return mean_of(masked(values, present), chosen), state + 1

    def _accepted(self, rows: Float[Tensor, "n d"], draw: int) -> Int[np.ndarray, " kept"]:
        points = _plane(rows)
        kept = np.flatnonzero(_near(points, self.first_cut))
        labels = natural_clusters(points[kept], numpy_generator(draw, "rflbat"))
        kept = kept[labels == _least_uniform(cosines(rows).cpu().numpy(), kept, labels)]
        return kept[_near(points[kept], self.second_cut)]


def _plane(rows: Float[Tensor, "n d"]) -> Float[np.ndarray, "n 2"]:
    """The first two principal components, to 6 digits; the largest coordinate is 1."""
    inner = inner_products(rows).cpu().numpy()
    inner = inner - inner.mean(axis=0) - inner.mean(axis=1)[:, None] + inner.mean()
    largest = np.abs(inner).max()
    if largest == 0:
        return np.zeros((len(rows), 2))
    values, vectors = np.linalg.eigh(inner / largest)
    points = vectors[:, -2:] * np.sqrt(np.clip(values[-2:], 0, None))
    # A square root has half the digits of the inner products; the rest would part twins.
    return np.round(points / np.abs(points).max(), 6)


def _near(points: Float[np.ndarray, "n 2"], cut: float) -> np.ndarray:
    """Whose sum of distances to the others is at most `cut` times the median one."""
    sums = np.linalg.norm(points[:, None] - points, axis=2).sum(axis=1)
    return sums <= cut * np.median(sums)


def _least_uniform(cosine: np.ndarray, kept: np.ndarray, labels: np.ndarray) -> int:
    """The cluster with the lowest median, over members, of the mean cosine to all members."""
    typical = []
    for label in range(labels.max() + 1):
        members = kept[labels == label]
        alone = len(members) <= 1  # one client is as uniform as can be
        inside = cosine[np.ix_(members, members)].mean(axis=1) if not alone else [1.0]
        typical.append(np.median(inside))
    return int(np.argmin(typical))
