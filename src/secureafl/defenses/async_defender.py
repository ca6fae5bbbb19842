"""AsyncDefender (an interpretation): an upload counts as much as it resembles the recent ones.

Only the abstract is public. It is read here as follows: an upload is weighed by its cosine with an
exponential mean of the uploads received, dropped if that is not positive, and shortened if it is
much longer than usual; with `credibility`, a client opposed in the long run is dropped as well.

Bai, Wang, Xu, Yang, Batool, Iqbal, Xu, "AsyncDefender: dynamic trust adaptation and collaborative
defense for Byzantine-robust asynchronous federated learning", Computer Networks 269, 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.rows import set_row
from secureafl.linalg.vectors import clipped, cosine, exact_norm, exactly_scaled, row

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    mean: Float[Tensor, " d"]  # r, of the uploads received, after shortening
    length: Float[Tensor, ""]  # mean of their lengths
    received: Int[Tensor, ""]
    credit: Float[Tensor, " n"]  # s_i


@dataclass(frozen=True)
class AsyncDefender:
    """w <- w - eta * max(0, cos(g, r)) * g, with g no longer than `headroom` times the mean.

    The mean is over all uploads. Over accepted ones only, whoever agrees with the last few would
    decide which uploads count next, and with label skew the model soon follows one group of
    clients. For the same reason every upload counts fully until the mean has its usual memory.
    Lengths have a mean of their own, because that of the uploads shrinks wherever they disagree.
    """

    memory: float = 0.9  # of the exponential means
    headroom: float = 2.0
    clip_norm: float = 50.0  # for the very first upload, which has no mean to be compared with
    credibility: bool = False  # drop a client while its mean cosine is negative

    def __post_init__(self) -> None:
        require(0 <= self.memory < 1, "memory", self.memory, "give a share from 0 to below 1")
        require(self.headroom >= 1, "headroom", self.headroom, "give a factor of 1 or more")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        zero = torch.zeros((), dtype=torch.float64, device=weights.device)
        return State(torch.zeros_like(weights), zero, zero.long(), zero.repeat(num_clients))

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        # Nothing to compare with: at the start, and should the mean ever vanish.
        blank = (exact_norm(state.mean) == 0) | (state.length == 0)
        starting = blank | (state.received < math.ceil(1 / (1 - self.memory) - 1e-9))
        radius = torch.where(blank, self.clip_norm, self.headroom * state.length)
        upload = clipped(arrival.gradient, radius)
        similarity = cosine(arrival.gradient, state.mean)
        credit = self._credit(state, arrival, similarity)
        weight = torch.where(starting, 1.0, similarity.clamp(min=0))
        accepted = (weight > 0) & (starting | (credit >= 0) | (not self.credibility))
        direction = torch.where(accepted, exactly_scaled(upload, weight), 0)
        scores = {"cosine": similarity, "weight": weight, "credit": credit}
        state = self._remembered(state, upload)
        return Decision(accepted, accepted, direction, scores, "cosine"), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        state.credit.index_fill_(0, client.view(1), 0)
        return state

    def _credit(self, state: State, arrival: Arrival, similarity: Tensor) -> Float[Tensor, ""]:
        """The client's credit after this upload, written in place."""
        before = row(state.credit, arrival.client)
        credit = self.memory * before + (1 - self.memory) * similarity
        set_row(state.credit, arrival.client, credit, torch.ones_like(credit, dtype=torch.bool))
        return credit

    def _remembered(self, state: State, upload: Tensor) -> State:
        # A plain mean at first, an exponential one once that has as short a memory.
        rate = (1 / (state.received.double() + 1)).clamp(min=1 - self.memory)
        return state._replace(
            mean=state.mean + exactly_scaled(upload - state.mean, rate),
            length=state.length + rate * (exact_norm(upload) - state.length),
            received=state.received + 1,
        )
