"""Kardam: an upload must not change faster than the clients' own gradients do.

A client's coefficient is how much its upload changed since its last one, per distance between the
base models. An upload's own, measured against the last one *applied* by anybody, must be at most
the (n - b)-th smallest of the clients'; and any 2b + 1 uploads applied in a row must come from
more than b clients. What passes is dampened by its staleness.

Damaskinos, El Mhamdi, Guerraoui, Patra, Taziki, "Asynchronous Byzantine machine learning (the
case of SGD)", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.shares import whole_clients
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.core.uploads import Uploads, no_uploads, with_upload, without_uploads
from secureafl.kernels.rows import set_row
from secureafl.linalg.vectors import clipped, exact_norm, exactly_scaled, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    sent: Uploads  # each client's last upload
    factors: Float[Tensor, "n window"]  # each client's last coefficients; -inf where unused
    count: Int[Tensor, " n"]  # coefficients a client ever had
    gradient: Float[Tensor, " d"]  # the last upload applied
    base: Float[Tensor, " d"]  # and the model under it
    senders: Int[Tensor, " recent"]  # of the last 2b uploads applied, newest last; n where unused
    refused: Int[Tensor, ""]  # in a row, by the Lipschitz filter


@dataclass(frozen=True)
class Kardam:
    """Lipschitz filter, frequency filter, dampening.

    The first filter can lock up: while nothing is applied the model stands still, and nothing else
    becomes acceptable. So after n refusals in a row the next upload passes it unseen. It compares
    clients with each other, so label skew looks like an attack: many honest uploads are refused.
    """

    malicious_share: float = 0.2  # b / n
    window: int = 25  # coefficients kept per client; the largest counts
    dampening: Literal["exponential", "inverse"] = "exponential"  # or 1 / (1 + tau)
    decay: float = 0.2  # exponential: exp(-decay tau)
    escape: bool = True  # from the lock-up
    clip_norm: float = 50.0  # for uploads that come before any client has a coefficient

    needs_malicious = True

    def __post_init__(self) -> None:
        share, remedy = self.malicious_share, "Kardam stands fewer than a third; give 0 to 0.33"
        require(0 <= share < 1 / 3, "malicious_share", share, remedy)
        require(self.window >= 1, "window", self.window, "give 1 coefficient or more")
        require(self.decay >= 0, "decay", self.decay, "give 0 (no dampening) or more")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        malicious = _malicious(self.malicious_share, num_clients)
        whole = {"dtype": torch.int64, "device": weights.device}
        return State(
            no_uploads(num_clients, weights),
            weights.new_full((num_clients, self.window), -torch.inf, dtype=torch.float64),
            torch.zeros(num_clients, **whole),
            torch.zeros_like(weights),
            torch.zeros_like(weights),
            torch.full((2 * malicious,), num_clients, **whole),
            torch.zeros((), **whole),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        blind = ~(state.count > 0).any()
        radius = torch.where(blind, self.clip_norm, exact_norm(arrival.gradient))
        arrival = arrival._replace(gradient=clipped(arrival.gradient, radius))
        state = _with_own_factor(state, arrival)
        num_clients = len(state.count)
        threshold = _threshold(state.factors, _malicious(self.malicious_share, num_clients))
        factor = _lipschitz_factor(arrival, state.gradient, state.base)
        smooth = factor <= threshold
        passed = smooth | (self.escape & (state.refused >= num_clients))
        accepted = passed & _varied(state.senders, arrival.client, num_clients)
        weight = self._dampening(arrival.staleness)
        direction = torch.where(accepted, exactly_scaled(arrival.gradient, weight), 0)
        scores = {"lipschitz": factor, "threshold": threshold, "weight": weight}
        state = _after(state, arrival, passed, accepted)
        return Decision(accepted, accepted, direction, scores, "filter"), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        index = client.view(1)
        state.factors.index_fill_(0, index, -torch.inf)
        state.count.index_fill_(0, index, 0)
        # `senders` stays: it is what the last steps were made of, and so the server's.
        return state._replace(sent=without_uploads(state.sent, client))

    def _dampening(self, staleness: Int[Tensor, ""]) -> Float[Tensor, ""]:
        late = staleness.double()
        return torch.exp(-self.decay * late) if self.dampening == "exponential" else 1 / (1 + late)


def _malicious(share: float, num_clients: int) -> int:
    """b, as long as three times as many clients and one more are there."""
    return min(whole_clients(share, num_clients), (num_clients - 1) // 3)


def _with_own_factor(state: State, arrival: Arrival) -> State:
    """The client's coefficient joins its list, and its upload takes the last one's place."""
    sent, client, width = state.sent, arrival.client, state.factors.shape[1]
    before, base = row(sent.gradient, client), row(sent.base, client)
    moved = row(sent.known, client) & (exact_norm(arrival.base - base) > 0)
    factor = _lipschitz_factor(arrival, before, base)
    number = row(state.count, client)
    place = client * width + number % width
    set_row(state.factors.view(-1), place, factor, moved)
    set_row(state.count, client, number + 1, moved)
    return state._replace(sent=with_upload(sent, arrival))


def _lipschitz_factor(arrival: Arrival, gradient: Tensor, base: Tensor) -> Float[Tensor, ""]:
    """Change of the gradient per change of the model; infinite if only the gradient changed."""
    change, moved = exact_norm(arrival.gradient - gradient), exact_norm(arrival.base - base)
    return torch.where(change > 0, change / moved, 0.0)


def _threshold(factors: Float[Tensor, "n window"], malicious: int) -> Float[Tensor, ""]:
    """The share (n - b) / n of the clients with a coefficient is not above it; +inf without any.

    An order statistic: interpolated, the threshold would follow the smallest malicious coefficient.
    """
    ordered = factors.amax(dim=1).sort().values
    n = len(ordered)
    known = (ordered > -torch.inf).sum()
    rank = -(-known * (n - malicious) // n)  # rounded up
    place = (n - known + rank - 1).clamp(min=0, max=n - 1)
    return torch.where(known > 0, row(ordered, place), torch.inf)


def _varied(senders: Int[Tensor, " recent"], client: Int[Tensor, ""], n: int) -> Bool[Tensor, ""]:
    """Whether the last 2b uploads applied and this one come from more than b clients."""
    seen = torch.zeros(n + 1, dtype=torch.bool, device=senders.device)
    seen.index_fill_(0, torch.cat([senders, client.view(1)]), True)
    full = ~seen[n]
    return ~full | (seen[:n].sum() > len(senders) // 2)


def _after(state: State, arrival: Arrival, passed: Tensor, accepted: Tensor) -> State:
    newer = torch.cat([state.senders, arrival.client.view(1)])[1:]
    return state._replace(
        gradient=torch.where(accepted, arrival.gradient, state.gradient),
        base=torch.where(accepted, arrival.base, state.base),
        senders=torch.where(accepted, newer, state.senders),
        refused=torch.where(accepted, 0, state.refused + ~passed),
    )
