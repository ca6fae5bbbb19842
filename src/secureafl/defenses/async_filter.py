"""AsyncFilter: of the buffered uploads on one model, those farthest from their mean are left out.

Uploads gather in a buffer. When it is full, they are grouped by the model they were computed on,
since honest uploads of different staleness differ. The distances of a group's uploads from the mean
of all uploads on that model, earlier ones included, are clustered into three; the cluster with the
largest is left out, the other two are averaged into the step. Groups of fewer than three pass.

Kang, Li, "AsyncFilter: detecting poisoning attacks in asynchronous federated learning", Middleware
2024; the details are those of the authors' code in Plato.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.rows import set_row
from secureafl.linalg.kmeans import upper_cluster
from secureafl.linalg.rows import mean_of
from secureafl.linalg.vectors import computed_if, exact_norm, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_SMALLEST_GROUP = _CLUSTERS = 3
_BUFFER_SHARE = 0.4  # of the clients: 40 of 100 in the paper


class State(NamedTuple):
    """What survives an arrival. Slot v mod V is that of the v-th model; the last V are kept."""

    buffer: Float[Tensor, "K d"]  # uploads since the last step
    slot: Int[Tensor, " K"]  # of the model each of them was computed on
    count: Int[Tensor, ""]  # in the buffer
    mean: Float[Tensor, "V d"]  # of the uploads on each model, over all steps
    number: Int[Tensor, " V"]  # of uploads in that mean
    ended: Int[Tensor, " V"]  # the arrival that ended each model
    steps: Int[Tensor, ""]  # so far, and so the number of the current model


@dataclass(frozen=True)
class AsyncFilter:
    """A step for every K uploads.

    Which of them are left out is known only then: `accepted` means taken into the buffer, and the
    score `rejected` counts those left out of the step.
    """

    buffer_size: int = 0  # K; 0: two fifths of the clients, at least 3
    max_lag: int = 10  # models back; older uploads are refused

    buffering = True

    def __post_init__(self) -> None:
        require(self.buffer_size >= 0, "buffer_size", self.buffer_size, "give 0 (2/5 n) or more")
        require(self.max_lag >= 0, "max_lag", self.max_lag, "give 0 (current model only) or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        usual = max(_SMALLEST_GROUP, math.ceil(_BUFFER_SHARE * num_clients - 1e-9))
        size, models = self.buffer_size or usual, self.max_lag + 1
        whole = {"dtype": torch.int64, "device": weights.device}
        return State(
            weights.new_zeros(size, weights.numel()),
            torch.zeros(size, **whole),
            torch.zeros((), **whole),
            weights.new_zeros(models, weights.numel()),
            torch.zeros(models, **whole),
            torch.full((models,), -1, **whole),
            torch.zeros((), **whole),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        # The base is older than every model that ended after it was handed out.
        lag = (state.ended >= server.round - arrival.staleness).sum()
        taken = lag < len(state.ended)
        set_row(state.buffer, state.count, arrival.gradient, taken)
        set_row(state.slot, state.count, (state.steps - lag) % len(state.ended), taken)
        count = state.count + taken
        ready = count == len(state.buffer)
        members = _judged_members(state)
        mean = computed_if(ready, lambda: _means(state, members), state.mean)
        rejected = computed_if(
            ready, lambda: _outliers(state, members, mean), torch.zeros_like(members[0])
        )
        direction = computed_if(
            ready, lambda: mean_of(state.buffer, ~rejected), torch.zeros_like(arrival.gradient)
        )
        number = torch.where(ready, state.number + members.sum(dim=1), state.number)
        state = state._replace(count=torch.where(ready, 0, count), mean=mean, number=number)
        scores = {"lag": lag, "buffered": count, "rejected": rejected.sum()}
        return Decision(taken, ready, direction, scores, "too_old"), _after(state, server, ready)


def _judged_members(state: State) -> Bool[Tensor, "V K"]:
    """Which buffered uploads are on each model; none where they are too few to be judged."""
    models = torch.arange(len(state.number), device=state.slot.device)
    members = state.slot == models[:, None]
    return members & (members.sum(dim=1, keepdim=True) >= _SMALLEST_GROUP)


def _means(state: State, members: Bool[Tensor, "V K"]) -> Float[Tensor, "V d"]:
    """The mean of each model's uploads, the judged ones of the buffer now included."""
    before, joining = state.number[:, None].double(), members.double()
    total = (before + joining.sum(dim=1, keepdim=True)).clamp(min=1)
    shares = torch.cat([torch.diag_embed((before / total).squeeze(1)), joining / total], dim=1)
    return shares.to(state.mean.dtype) @ torch.cat([state.mean, state.buffer])


def _outliers(
    state: State, members: Bool[Tensor, "V K"], mean: Float[Tensor, "V d"]
) -> Bool[Tensor, " K"]:
    """The uploads in the farthest of the three clusters of their model's."""
    distances = exact_norm(state.buffer - mean.index_select(0, state.slot))
    table = torch.where(members, distances, 0)
    farthest = table.amax(dim=1, keepdim=True)
    # Relative, and to 12 digits: rounding must not tell equal distances apart.
    relative = torch.where(farthest > 0, table / farthest, 0).round(decimals=12)
    return upper_cluster(relative, members, _CLUSTERS)[0].any(dim=0)


def _after(state: State, server: ServerView, ready: Bool[Tensor, ""]) -> State:
    """After a step the oldest model's slot is the new one's, with no uploads yet."""
    models = len(state.ended)
    set_row(state.ended, state.steps % models, server.round, ready)
    steps = state.steps + ready
    set_row(state.number, steps % models, torch.zeros_like(steps), ready)
    set_row(state.mean, steps % models, torch.zeros_like(row(state.mean, steps % models)), ready)
    return state._replace(steps=steps)
