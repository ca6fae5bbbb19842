"""AFLGuard: an upload must lie near the gradient on the server's own clean samples.

The server computes what it would upload itself and takes a client's upload, unchanged, if the
difference between the two is short compared with its own; so length and direction are tested at
once. With label skew, a small `closeness` turns many honest uploads away too.

Fang, Liu, Gong, Bentley, "AFLGuard: Byzantine-robust asynchronous federated learning", ACSAC 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Aflguard:
    """Accept iff ||g - g_s|| <= closeness * ||g_s||, with g_s the gradient on the root data now."""

    # lambda. With the 1.5 that is said to be the authors' an untrained model takes next to no
    # upload of a client with label skew, and never gets trained (docs/coverage.md).
    closeness: float = 3.0

    needs_root_data = True

    def __post_init__(self) -> None:
        require(self.closeness > 0, "closeness", self.closeness, "give a factor above 0")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], arrival: Arrival, server: ServerView
    ) -> tuple[Decision, tuple[()]]:
        assert server.root_data is not None
        own = server.root_data.gradient(server.weights)
        distance, bound = exact_norm(arrival.gradient - own), self.closeness * exact_norm(own)
        accepted = distance <= bound
        direction = torch.where(accepted, arrival.gradient, 0)
        scores = {"distance": distance, "bound": bound}
        return Decision(accepted, accepted, direction, scores, "distance"), state
