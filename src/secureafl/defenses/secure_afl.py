"""SecureAFL: filter each upload by its Lipschitz smoothness, estimate everybody else, aggregate.

An upload that changed more than its base model explains, compared with the same client's last
one, is left out; what every other known client would have sent on the current model is estimated;
a robust rule over all of it gives the step. So the server never waits, and a lone upload never
steers the model.

The paper's ablation variants are settings: `aggregator = "mean"` (I), `estimate = false` (II),
`filter = false` (III), `use_received = false` (IV).

Gao, Wang, Wan, Quan, Liu, Fang, "SecureAFL: secure asynchronous federated learning", ASIA CCS 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from secureafl.aggregators.median import Median
from secureafl.core.errors import require
from secureafl.core.protocols import Aggregator, Estimator, OrderRule
from secureafl.core.quantile import History, no_history, observe, quantile
from secureafl.core.server import LARGEST_NORM
from secureafl.core.types import Arrival, Decision, Inner, Mine, ServerView
from secureafl.core.uploads import Uploads, no_uploads, with_upload
from secureafl.core.vectors import norm, row, set_row
from secureafl.estimators.lbfgs import Lbfgs
from secureafl.kernels.aggregate import combined_order_mean
from secureafl.kernels.memory import Memory, after_step, no_memory, recall, remember
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, combine, products

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    memory: Memory  # what estimates are made of
    reference: Uploads | tuple[()]  # last uploads, where the memory does not hold them all
    factors: History  # Q
    notes: Any  # the estimator's
    rule: Any  # the aggregator's


@dataclass(frozen=True)
class SecureAfl:
    """The rule of the paper, with its open points settled (docs/algorithm.md)."""

    alpha: float = 0.8  # share of Lipschitz factors that pass
    clip_norm: float = 50.0  # G, for a client's first upload, which has no factor
    window: int = 0  # of Q; 0 keeps all factors (core.quantile.LONGEST of them at most)
    rejected: Literal["keep", "forget", "reference"] = "keep"  # as what an upload is remembered
    filter: bool = True
    estimate: bool = True
    use_received: bool = True
    estimator: Estimator = field(default_factory=Lbfgs)
    aggregator: Aggregator = field(default_factory=Median)

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 1, "alpha", self.alpha, "give a share above 0, at most 1")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")
        require(self.window >= 0, "window", self.window, "give 0 (all) or a number of factors")
        useful = self.estimate or self.use_received
        require(useful, "use_received", False, "without estimates the received updates are needed")

    def init(self, num_clients, weights):
        return State(
            no_memory(num_clients, OWN + self.estimator.slots, weights),
            no_uploads(num_clients, weights) if self.rejected == "reference" else (),
            no_history(self.window, weights.device),
            self.estimator.init(num_clients, weights),
            self.aggregator.init(num_clients, weights),
        )

    def step(self, state, arrival, server):
        mine = _recall(state.memory, arrival)
        last = _last_upload(state.reference, arrival) if state.reference else mine
        arrival = arrival._replace(gradient=_first_clipped(arrival, last.known, self.clip_norm))
        factor, comparable = _lipschitz_factor(last, arrival)
        factors = observe(state.factors, factor, comparable)
        threshold = quantile(factors, self.alpha)
        accepted = ~comparable | (factor <= threshold) | (not self.filter)
        state = self._remembered(state._replace(factors=factors), mine, arrival, accepted, server)
        direction, ready, state = self._direction(state, arrival, accepted, server)
        scores = {"lipschitz": torch.where(comparable, factor, torch.nan), "threshold": threshold}
        return Decision(accepted, ready, direction, scores, "lipschitz"), state

    def _remembered(
        self, state: State, mine: Mine, arrival: Arrival, accepted: Tensor, server: ServerView
    ) -> State:
        keep = accepted | (self.rejected == "keep")
        vectors, notes = self.estimator.remember(state.notes, mine, arrival, keep)
        rows = torch.cat([arrival.gradient[None], arrival.base[None], vectors])
        memory = remember(state.memory, arrival.client, rows, server.weights, keep)
        reference = state.reference and with_upload(state.reference, arrival)
        return state._replace(memory=memory, reference=reference, notes=notes)

    def _direction(self, state: State, arrival: Arrival, accepted: Tensor, server: ServerView):
        """The aggregate over the accepted upload and the estimates of all others."""
        if not self.estimate:
            return arrival.gradient, accepted, state
        memory, weights = state.memory, server.weights
        counts, always = accepted & self.use_received, torch.ones_like(accepted)
        # A client has one voice: its upload if that counts, else nothing this round.
        present = memory.known.clone()
        set_row(present, arrival.client, counts, always)
        inner = Inner(memory.gram, memory.along, weights.double() @ weights.double())
        shares = self.estimator.shares(state.notes, inner)
        upload = torch.zeros_like(shares[0])
        upload[GRADIENT] = 1
        set_row(shares, arrival.client, upload, always)
        direction, along, rule = self._aggregate(state, shares.to(weights.dtype), weights, present)
        # The server would not take a longer step, and then the inner products would be wrong.
        ready = present.any() & (norm(direction) <= LARGEST_NORM)
        memory = after_step(memory, -server.learning_rate * along, ready)
        return torch.where(ready, direction, 0), ready, state._replace(memory=memory, rule=rule)

    def _aggregate(self, state: State, shares: Tensor, weights: Tensor, present: Tensor):
        """The step, its inner products with every remembered vector, and the rule's state."""
        vectors, rule = state.memory.vectors, self.aggregator
        if isinstance(rule, OrderRule):
            ranks = rule.ranks(present.sum())
            return *combined_order_mean(vectors, shares, weights, present, *ranks), state.rule
        values = combine(vectors, shares, weights)
        direction, after = rule.aggregate(state.rule, values, present)
        return direction, products(vectors, direction), after


def _recall(memory: Memory, arrival: Arrival) -> Mine:
    rows = recall(memory, arrival.client, arrival.gradient.numel())
    return Mine(row(memory.known, arrival.client), rows[GRADIENT], rows[BASE], rows[OWN:])


def _last_upload(reference: Uploads, arrival: Arrival) -> Mine:
    known, client = row(reference.known, arrival.client), arrival.client
    gradient, base = row(reference.gradient, client), row(reference.base, client)
    return Mine(known, gradient, base, gradient[:0])


def _first_clipped(arrival: Arrival, met: Bool[Tensor, ""], radius: float) -> Float[Tensor, " d"]:
    """First contact has no Lipschitz factor; its norm is bounded instead."""
    length = norm(arrival.gradient)
    scale = torch.where(~met & (length > radius), radius / length, 1.0)
    return arrival.gradient * scale.to(arrival.gradient.dtype)


def _lipschitz_factor(last: Mine, arrival: Arrival) -> tuple[Tensor, Tensor]:
    """The factor ||g - g_last|| / ||w_base - w_base_last||, and whether it is defined."""
    change = norm(arrival.gradient - last.gradient)
    step = norm(arrival.base - last.base)
    comparable = last.known & (step > 0)
    return torch.where(comparable, change / step, 0), comparable
