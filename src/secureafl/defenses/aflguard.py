"""AFLGuard: an upload must lie near the gradient on the server's own clean samples.

The server computes what it would upload itself and takes a client's upload, unchanged, if the
difference between the two is short compared with its own; so length and direction are tested at
once. With label skew, a small `closeness` turns many honest uploads away too. The gradient of a few
samples drawn anew for each arrival (`batch_size`) is longer than that of all, so more is taken.
`form = "alignment"` asks for a positive inner product only, as the SecureAFL paper describes it.

Fang, Liu, Gong, Bentley, "AFLGuard: Byzantine-robust asynchronous federated learning", ACSAC 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from secureafl.core.errors import require
from secureafl.core.random import random_bits
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import cosine, exact_norm

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Aflguard:
    """Accept iff ||g - g_s|| <= closeness * ||g_s||, with g_s the gradient on the root data now."""

    # lambda. With the 1.5 that is said to be the authors' an untrained model takes next to no
    # upload of a client with label skew, and never gets trained (docs/coverage.md).
    closeness: float = 3.0
    batch_size: int = 0  # root samples drawn for each arrival, or all if there are fewer; 0: all
    form: Literal["distance", "alignment"] = "distance"  # alignment: accept iff <g, g_s> > 0

    needs_root_data = True

    def __post_init__(self) -> None:
        require(self.closeness > 0, "closeness", self.closeness, "give a factor above 0")
        require(self.batch_size >= 0, "batch_size", self.batch_size, "give 0 (all) or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[Tensor, ...]:
        # Clients that knew the samples could fit an upload to them.
        return (torch.randint(2**62, ()).to(weights.device),) if self.batch_size else ()

    def step(
        self, state: tuple[Tensor, ...], arrival: Arrival, server: ServerView
    ) -> tuple[Decision, tuple[Tensor, ...]]:
        own, state = self._own_gradient(state, server)
        if self.form == "alignment":
            similarity = cosine(arrival.gradient, own)
            accepted, scores = similarity > 0, {"cosine": similarity}
        else:
            distance, bound = exact_norm(arrival.gradient - own), self.closeness * exact_norm(own)
            accepted, scores = distance <= bound, {"distance": distance, "bound": bound}
        direction = torch.where(accepted, arrival.gradient, 0)
        return Decision(accepted, accepted, direction, scores, self.form), state

    def _own_gradient(
        self, state: tuple[Tensor, ...], server: ServerView
    ) -> tuple[Float[Tensor, " d"], tuple[Tensor, ...]]:
        """The server's gradient; the state is the number of the next draw, if samples are drawn."""
        root_data = server.root_data
        assert root_data is not None
        if not state:
            return root_data.gradient(server.weights), state
        (draw,) = state
        drawn = random_bits(draw, len(root_data.labels)).argsort()[: self.batch_size]
        return root_data.gradient(server.weights, drawn), (draw + 1,)
