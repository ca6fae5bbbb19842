"""Krum: the one client whose nearest others are nearest.

Each client is scored by the sum of its squared distances to its n - f - 2 nearest others; the
update with the smallest score is taken whole. Attackers far from the honest clients score badly,
and a minority of them cannot lend each other enough neighbours.

With so few clients that no neighbour would be left (n < f + 3), the nearest one counts.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant
gradient descent", NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.shares import require_minority
from secureafl.linalg.pairwise import squared_distances
from secureafl.linalg.rows import assumed_malicious, masked
from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Krum:
    """The update with the smallest sum of squared distances to its neighbours."""

    share: float = 0.2  # f / n, clients assumed malicious

    def __post_init__(self) -> None:
        require_minority("share", self.share)

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        malicious = assumed_malicious(present.sum(), self.share)
        scores = krum_scores(*neighbours(values, present), present, malicious)
        return row(masked(values, present), scores.argmin()), state


def neighbours(
    values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
) -> tuple[Float[Tensor, "n n"], Int[Tensor, "n n"]]:
    """Squared distances of each client to the others, ascending, and to whom they are."""
    distances = squared_distances(values, present)
    own = torch.eye(len(values), dtype=torch.bool, device=values.device)
    ordered = torch.where(own, torch.inf, distances).sort(dim=1, stable=True)
    return ordered.values, ordered.indices


def krum_scores(
    distances: Float[Tensor, "n n"],
    order: Int[Tensor, "n n"],
    among: Bool[Tensor, " n"],
    malicious: Int[Tensor, ""],
) -> Float[Tensor, " n"]:
    """Scores if only the clients `among` took part; infinite for the others."""
    wanted = (among.sum() - malicious - 2).clamp(min=1)
    counted = among[order] & (distances < torch.inf)  # infinite: itself, or absent
    nearest = counted & (counted.cumsum(dim=1) <= wanted)
    return torch.where(among, torch.where(nearest, distances, 0).sum(dim=1), torch.inf)
