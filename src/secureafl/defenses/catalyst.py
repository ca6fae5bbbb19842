"""Catalyst: semi-asynchronous; wait for 2b + 1 uploads on the current model, keep their majority.

When 2b + 1 clients have answered to the current model, the closest-knit majority of their uploads
by cosine distance is averaged, each clipped to their median norm. A late upload, on one of the
last few models, is held against those that model's step was made of; if it belongs to their
majority, it is added to the next step with weight 1/n.

Cox, Mălan, Chen, Decouchant, "Asynchronous Byzantine federated learning", arXiv:2406.01438, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.shares import require_minority, whole_clients
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.rows import set_row
from secureafl.linalg.linkage import closest_majority
from secureafl.linalg.rows import median_of
from secureafl.linalg.vectors import computed_if, exact_norm, exactly_scaled, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival. Slot v mod V is that of the v-th model; the last V are kept."""

    units: Float[Tensor, "V n d"]  # uploads on each model, divided by their norms
    cosines: Float[Tensor, "V n n"]  # of the angles between those on one model
    lengths: Float[Tensor, "V n"]  # those norms
    known: Bool[Tensor, "V n"]  # whose upload there is
    fresh: Bool[Tensor, "V n"]  # whose upload has not been part of a step
    radius: Float[Tensor, " V"]  # median norm of the uploads a model's step was made of
    ended: Int[Tensor, " V"]  # the arrival that ended each model
    steps: Int[Tensor, ""]  # so far, and so the number of the current model


@dataclass(frozen=True)
class Catalyst:
    """A step for every 2b + 1 clients that answered to the current model.

    Only the majority of a model's uploads can be a cluster, so the original's clustering (HDBSCAN)
    comes down to single linkage. Which uploads it keeps is known at the step: `accepted` means
    taken into the buffer.
    """

    malicious_share: float = 0.2  # b / n
    max_lag: int = 5  # k, models back; each costs the memory of an upload per client

    needs_malicious = True
    buffering = True

    def __post_init__(self) -> None:
        require_minority("malicious_share", self.malicious_share)
        require(self.max_lag >= 0, "max_lag", self.max_lag, "give 0 (no late uploads) or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        size, device = (self.max_lag + 1, num_clients), weights.device
        return State(
            weights.new_zeros(*size, weights.numel()),
            weights.new_zeros(*size, num_clients),
            torch.zeros(size, dtype=torch.float64, device=device),
            torch.zeros(size, dtype=torch.bool, device=device),
            torch.zeros(size, dtype=torch.bool, device=device),
            torch.zeros(size[0], dtype=torch.float64, device=device),
            torch.full(size[:1], -1, dtype=torch.int64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        models, clients = state.known.shape
        # The base is older than every model that ended after it was handed out.
        lag = (state.ended >= server.round - arrival.staleness).sum()
        taken, now = lag < models, state.steps % models
        state = _with_upload(state, arrival, (state.steps - lag) % models, taken)
        answers = row(state.known, now)
        malicious = min(whole_clients(self.malicious_share, clients), (clients - 1) // 2)
        ready = answers.sum() > 2 * malicious
        set_row(state.radius, now, median_of(row(state.lengths, now), answers), ready)
        direction = computed_if(
            ready, lambda: _direction(state, now), torch.zeros_like(arrival.gradient)
        )
        scores = {"lag": lag, "answers": answers.sum()}
        return Decision(taken, ready, direction, scores, "too_old"), _after(state, server, ready)

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        for table in (state.units, state.cosines, state.lengths, state.known, state.fresh):
            table.index_fill_(1, client.view(1), 0)
        state.cosines.index_fill_(2, client.view(1), 0)
        return state


def _with_upload(state: State, arrival: Arrival, slot: Tensor, taken: Tensor) -> State:
    """The upload in its client's row of a model's slot, where it replaces an earlier one."""
    length, clients = exact_norm(arrival.gradient), state.known.shape[1]
    unit = exactly_scaled(arrival.gradient, torch.where(length > 0, 1 / length, 0.0))
    place = slot * clients + arrival.client
    set_row(state.units.view(-1, len(unit)), place, unit, taken)
    _set_cosines(state, slot, arrival.client, _of_model(state.units, slot) @ unit, taken)
    set_row(state.lengths.view(-1), place, length, taken)
    set_row(state.known.view(-1), place, taken, taken)
    set_row(state.fresh.view(-1), place, taken, taken)
    return state


def _of_model(units: Float[Tensor, "V n d"], slot: Int[Tensor, ""]) -> Float[Tensor, "n d"]:
    """The uploads on one model; on a CPU, where a slot can be read, not a copy of them."""
    return units[int(slot)] if units.device.type == "cpu" else row(units, slot)


def _set_cosines(
    state: State, slot: Tensor, client: Tensor, cosines: Float[Tensor, " n"], taken: Tensor
) -> None:
    """Put down a new upload's cosines with the others on its model, and theirs with it."""
    clients, table = len(cosines), state.cosines.view(-1)
    other = torch.arange(clients, device=cosines.device)
    first = slot * clients * clients
    for places in (first + client * clients + other, first + other * clients + client):
        table.index_copy_(0, places, torch.where(taken, cosines, table[places]))


def _direction(state: State, now: Int[Tensor, ""]) -> Float[Tensor, " d"]:
    """Mean of the current model's majority, and 1/n of each late upload that is in its model's."""
    models, clients = state.known.shape
    distances = (1 - state.cosines).clamp(min=0).double()
    counted = closest_majority(distances, state.known) & state.fresh
    current = torch.arange(models, device=now.device) == now
    divisors = torch.where(current, counted.sum(dim=1), clients)
    clipped = torch.minimum(state.lengths, state.radius[:, None])
    shares = torch.where(counted, clipped / divisors[:, None], 0.0).to(state.units.dtype)
    return shares.view(-1) @ state.units.view(models * clients, -1)


def _after(state: State, server: ServerView, ready: Bool[Tensor, ""]) -> State:
    """Every upload has been used once the step is made; the next model starts with none."""
    models = len(state.known)
    set_row(state.ended, state.steps % models, server.round, ready)
    steps = state.steps + ready
    fresh = state.fresh & ~ready
    nobody = torch.zeros_like(state.known[0])
    set_row(state.known, steps % models, nobody, ready)
    return state._replace(fresh=fresh, steps=steps)
