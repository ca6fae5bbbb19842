"""Nearest-neighbour mixing: replace each client by the mean of its nearest, then a robust rule.

Each update becomes the mean of the n - f updates nearest to it, itself included. What an attacker
sends is averaged with honest updates, and these move closer together: the inner rule then loses
less to differences between honest clients.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by mixing: a recipe for optimal
Byzantine ML under heterogeneity", AISTATS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from secureafl.aggregators.wrapper import Wrapper
from secureafl.core.inactivity import forget
from secureafl.core.rules import apply_rule
from secureafl.core.shares import require_minority
from secureafl.linalg.pairwise import squared_distances
from secureafl.linalg.rows import assumed_malicious, masked, smallest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class NearestNeighbourMixing(Wrapper):
    """The inner rule over means of the n - f nearest."""

    share: float = 0.2  # f / n, clients assumed malicious

    def __post_init__(self) -> None:
        require_minority("share", self.share)

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Any:
        return self.inner.init(num_clients, weights)

    def forget(self, state: Any, client: Int[Tensor, ""]) -> Any:
        return forget(self.inner, state, client)

    def aggregate_with_root(
        self,
        state: Any,
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        root_gradient: Float[Tensor, " d"] | None,
    ) -> tuple[Float[Tensor, " d"], Any]:
        count = present.sum()
        number = count - assumed_malicious(count, self.share)
        nearest = smallest(squared_distances(values, present), number)
        shares = torch.where(nearest & present[:, None], 1 / number.double(), 0).to(values.dtype)
        mixed = shares @ masked(values, present)
        return apply_rule(self.inner, state, mixed, present, root_gradient)
