"""Norm clipping: every upload is applied, no longer than the median of the clients' last ones.

The plain yardstick of robust learning: no client is identified or refused, but none moves the model
further than a typical one. The bound is the lower median over the clients heard of, this upload's
own norm included, so the very first upload of a run is not shortened at all.

Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", arXiv:1911.07963,
2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.rows import set_row
from secureafl.linalg.rows import lower_median
from secureafl.linalg.vectors import clipped, exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    norms: Float[Tensor, " n"]  # of the clients' last uploads, before clipping
    known: Bool[Tensor, " n"]


@dataclass(frozen=True)
class NormClipping:
    """w <- w - eta g min(1, m / ||g||), where m is the median of the clients' last norms."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        norms = torch.zeros(num_clients, dtype=torch.float64, device=weights.device)
        return State(norms, torch.zeros_like(norms, dtype=torch.bool))

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        yes = torch.ones_like(state.known[0])
        set_row(state.norms, arrival.client, exact_norm(arrival.gradient), yes)
        set_row(state.known, arrival.client, yes, yes)
        radius = lower_median(state.norms, state.known)
        direction = clipped(arrival.gradient, radius)
        return Decision(yes, yes.clone(), direction, {"radius": radius}, ""), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        for table in state:
            table.index_fill_(0, client.view(1), 0)
        return state
