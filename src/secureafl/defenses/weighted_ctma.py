"""Weighted CTMA: the clients' momenta, weighted by their uploads, trimmed around a robust centre.

The server keeps a momentum of each client's uploads. A client weighs as much as it has uploaded
often, since a fast client's momentum is fresher and has less noise in it. A weighted robust rule
gives a centre; the momenta closest to it, until they have the share 1 - lambda of the weight, are
averaged. So what must be a minority is the share of *uploads* that are malicious, not of clients.

The paper's method sends corrected momenta (mu^2-SGD): each client evaluates one batch at two models
and uploads the combination. Here an upload is one gradient at one model, so these are the
plain (`momentum = 0`) and the momentum variant that the paper compares with.

Dahan, Levy, "Weight for robustness: a comprehensive approach towards optimal fault-tolerant
asynchronous ML", NeurIPS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.shares import require_minority, whole_clients
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.rows import set_row
from secureafl.kernels.weiszfeld import distances_from_median
from secureafl.linalg.pairwise import products_along
from secureafl.linalg.rows import weighted_mean
from secureafl.linalg.vectors import computed_if, exact_norm, row
from secureafl.linalg.weighted import weighted_median

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_ROUNDING = 1e-9  # of a client's weight; less than that is left of it by rounding alone


class State(NamedTuple):
    """What survives an arrival."""

    momentum: Float[Tensor, "n d"]  # d_i
    products: Float[Tensor, "n n"]  # inner products of the momenta
    count: Int[Tensor, " n"]  # s_i, uploads of each client so far


@dataclass(frozen=True)
class WeightedCtma:
    """w <- w - eta * (weighted mean of the momenta nearest to their weighted centre).

    The paper starts with a gradient of every client. Here the first step waits for 2b + 1 of them,
    so that the malicious ones are a minority of those heard of.
    """

    malicious_share: float = 0.2  # lambda, of all uploads
    centre: Literal["geometric_median", "median"] = "geometric_median"
    momentum: float = 0.0  # beta; 0: the last upload alone; 0.9 averages over 10 n arrivals

    needs_malicious = True

    def __post_init__(self) -> None:
        require_minority("malicious_share", self.malicious_share)
        require(0 <= self.momentum < 1, "momentum", self.momentum, "give 0 to below 1")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        count = torch.zeros(num_clients, dtype=torch.int64, device=weights.device)
        products = weights.new_zeros(num_clients, num_clients, dtype=torch.float64)
        return State(weights.new_zeros(num_clients, weights.numel()), products, count)

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        self._remember(state, arrival)
        clients, heard = len(state.count), (state.count > 0).sum()
        malicious = min(whole_clients(self.malicious_share, clients), (clients - 1) // 2)
        ready = heard > 2 * malicious
        distances = self._distances(state)
        kept = _nearest(distances, state.count.double(), 1 - self.malicious_share)
        share = row(kept, arrival.client) / row(state.count, arrival.client)
        share = torch.where(ready, share, 1.0)  # nobody is trimmed before the first step
        direction = computed_if(
            ready,
            lambda: weighted_mean(state.momentum, kept),
            torch.zeros_like(arrival.gradient),
        )
        scores = {"distance": row(distances, arrival.client), "share": share}
        return Decision(share > _ROUNDING, ready, direction, scores, "trimmed"), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        for table in state:
            table.index_fill_(0, client.view(1), 0)
        state.products.index_fill_(1, client.view(1), 0)
        return state

    def _remember(self, state: State, arrival: Arrival) -> None:
        """Add the upload to its client's momentum, in place; a first upload is the momentum."""
        count, before = row(state.count, arrival.client), row(state.momentum, arrival.client)
        yes = torch.ones_like(count, dtype=torch.bool)
        moved = self.momentum * before + (1 - self.momentum) * arrival.gradient
        value = torch.where(count > 0, moved, arrival.gradient)
        set_row(state.momentum, arrival.client, value, yes)
        set_row(state.count, arrival.client, count + 1, yes)
        along = products_along(state.momentum, value)
        for table in (state.products, state.products.T):
            set_row(table, arrival.client, along, yes)

    def _distances(self, state: State) -> Float[Tensor, " n"]:
        """Of each momentum from the weighted centre; infinite for clients not heard of."""
        present, weights = state.count > 0, state.count.double()
        if self.centre == "median":
            found = exact_norm(state.momentum - weighted_median(state.momentum, present, weights))
        else:
            found = distances_from_median(state.products, weights)
        # To float32: rounding must not tell equal distances apart.
        return torch.where(present, found.float().double(), torch.inf)


def _nearest(
    distances: Float[Tensor, " n"], weights: Float[Tensor, " n"], share: float
) -> Float[Tensor, " n"]:
    """Weights of the nearest clients, up to this share of all weight; the last one's in part."""
    order = distances.argsort(stable=True)
    mass = weights[order]
    before = mass.cumsum(dim=0) - mass
    kept = torch.minimum(mass, (share * mass.sum() - before).clamp(min=0))
    return torch.zeros_like(weights).index_copy(0, order, kept)
