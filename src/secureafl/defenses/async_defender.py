"""AsyncDefender (an interpretation): each upload counts as much as it resembles the recent steps.

Only the abstract is public. It is read here as follows: an upload is weighed by its cosine with an
exponential mean of the steps taken, dropped if that is not positive, and shortened if it is much
longer than usual; with `credibility`, a client opposed in the long run is dropped as well.

Bai, Wang, Xu, Yang, Batool, Iqbal, Xu, "AsyncDefender: dynamic trust adaptation and collaborative
defense for Byzantine-robust asynchronous federated learning", Computer Networks 269, 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.types import Decision
from secureafl.core.vectors import clipped, cosine, norm, row, scaled, set_row

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    step: Float[Tensor, " d"]  # r, mean of the steps taken
    length: Float[Tensor, ""]  # mean length of the uploads behind them, after shortening
    taken: Int[Tensor, ""]  # steps so far
    credit: Float[Tensor, " n"]  # s_i


@dataclass(frozen=True)
class AsyncDefender:
    """w <- w - eta * max(0, cos(g, r)) * g, with g no longer than `headroom` times the mean.

    One upload is no global gradient: until the mean has its usual length of memory, every upload
    counts fully, or whoever comes first would decide who is believed. Lengths have a mean of their
    own, because that of the steps shrinks wherever uploads disagree.
    """

    memory: float = 0.9  # of the exponential means
    headroom: float = 2.0
    clip_norm: float = 50.0  # for the very first upload, which has no mean to be compared with
    credibility: bool = False  # drop a client while its mean cosine is negative

    def __post_init__(self) -> None:
        require(0 <= self.memory < 1, "memory", self.memory, "give a share from 0 to below 1")
        require(self.headroom >= 1, "headroom", self.headroom, "give a factor of 1 or more")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")

    def init(self, num_clients, weights):
        zero = torch.zeros((), dtype=torch.float64, device=weights.device)
        return State(torch.zeros_like(weights), zero, zero.long(), zero.repeat(num_clients))

    def step(self, state, arrival, server):
        # Nothing to compare with: at the start, and should the mean ever vanish.
        blank = (norm(state.step) == 0) | (state.length == 0)
        starting = blank | (state.taken < math.ceil(1 / (1 - self.memory) - 1e-9))
        radius = torch.where(blank, self.clip_norm, self.headroom * state.length)
        upload = clipped(arrival.gradient, radius)
        similarity = cosine(arrival.gradient, state.step)
        credit = self._credit(state, arrival, torch.where(blank, 0.0, similarity))
        weight = torch.where(starting, 1.0, similarity.clamp(min=0))
        accepted = (weight > 0) & (starting | (credit >= 0) | (not self.credibility))
        direction = torch.where(accepted, scaled(upload, weight), 0)
        state = self._remembered(state, direction, norm(upload), accepted)
        scores = {"cosine": similarity, "weight": weight, "credit": credit}
        return Decision(accepted, accepted, direction, scores, "cosine"), state

    def _credit(self, state: State, arrival, similarity: Tensor) -> Float[Tensor, ""]:
        """The client's credit after this upload, written in place."""
        before = row(state.credit, arrival.client)
        credit = self.memory * before + (1 - self.memory) * similarity
        set_row(state.credit, arrival.client, credit, torch.ones_like(credit, dtype=torch.bool))
        return credit

    def _remembered(self, state: State, step: Tensor, length: Tensor, accepted: Tensor) -> State:
        # A plain mean at first, an exponential one once that has as short a memory.
        rate = (1 / (state.taken.double() + 1)).clamp(min=1 - self.memory)
        moved = state.step + scaled(step - state.step, rate)
        longer = state.length + rate * (length - state.length)
        return State(
            torch.where(accepted, moved, state.step),
            torch.where(accepted, longer, state.length),
            state.taken + accepted,
            state.credit,
        )
