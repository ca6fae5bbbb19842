"""Zeno++: an upload must point where the server's own clean samples point.

The upload is rescaled to the length of the gradient on the server's samples and applied if the
two agree. `form = "cosine"` asks for a positive cosine, as the SecureAFL paper does; `"score"` is
the original test, which subtracts a penalty for length from the promised descent. The gradient is
computed on all root data at the current model at every arrival.

Xie, Koyejo, Gupta, "Zeno++: robust fully asynchronous SGD", ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import cosine, exact_norm, exactly_scaled

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class ZenoPp:
    """Accept iff cos(g, g_s) > 0, or iff <g_s, g'> - penalty ||g'||^2 >= -slack; apply g'."""

    form: Literal["cosine", "score"] = "cosine"
    penalty: float = 0.01  # rho / gamma; the authors run 0.001 / 0.1
    slack: float = 0.0  # epsilon

    needs_root_data = True

    def __post_init__(self) -> None:
        require(self.penalty >= 0, "penalty", self.penalty, "give 0 or more")
        require(self.slack >= 0, "slack", self.slack, "give 0 or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], arrival: Arrival, server: ServerView
    ) -> tuple[Decision, tuple[()]]:
        assert server.root_data is not None
        own = server.root_data.gradient(server.weights)
        similarity = cosine(arrival.gradient, own)
        wanted, length = exact_norm(own), exact_norm(arrival.gradient)
        # g', as long as g_s; a zero upload stays zero.
        factor = torch.where(length > 0, wanted / length, 0.0)
        score = wanted**2 * torch.where(length > 0, similarity - self.penalty, 0.0)
        accepted = similarity > 0 if self.form == "cosine" else score >= -self.slack
        direction = torch.where(accepted, exactly_scaled(arrival.gradient, factor), 0)
        scores = {"cosine": similarity, "score": score}
        return Decision(accepted, accepted, direction, scores, self.form), state
