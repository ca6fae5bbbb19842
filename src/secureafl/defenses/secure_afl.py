"""SecureAFL: filter each upload by its Lipschitz smoothness, estimate everybody else, aggregate.

An upload that changed more than its base model explains, compared with the same client's last
one, is left out; what every other known client would have sent on the current model is estimated;
a robust rule over all of it gives the step. So the server never waits, and a lone upload never
steers the model.

The paper's ablation variants are settings: `aggregator = "mean"` (I), `estimate = false` (II),
`filter = false` (III), `use_received = false` (IV; with `store_received = false` as well, estimates
start from each client's first upload for ever).

Gao, Wang, Wan, Quan, Liu, Fang, "SecureAFL: secure asynchronous federated learning", ASIA CCS 2026.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch

from secureafl.aggregators.median import Median
from secureafl.core.errors import require
from secureafl.core.inactivity import forget
from secureafl.core.protocols import Aggregator, Estimator, OrderRule, WeightedRule
from secureafl.core.rules import apply_rule, own_weight
from secureafl.core.traits import has_trait
from secureafl.core.types import Arrival, Decision, Entry, Inner, ServerView
from secureafl.core.uploads import Uploads, no_uploads, with_upload, without_uploads
from secureafl.estimators.lbfgs import Lbfgs
from secureafl.kernels.memory import Memory, no_memory, with_model, without_client
from secureafl.kernels.operations import (
    after_step,
    filter_update,
    order_step,
    secant_products,
    select_participants,
    store_upload,
    tiled_secant_products,
)
from secureafl.kernels.step import Selection, Step, step_along
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, combine, read_client
from secureafl.linalg.quantile import History, no_history
from secureafl.linalg.vectors import exactly_scaled, row, scaled, zero_unless

if TYPE_CHECKING:
    from jaxtyping import Float, Int
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
    window: int = 0  # of Q; 0 keeps all factors (linalg.quantile.LONGEST of them at most)
    rejected: Literal["keep", "forget", "reference"] = "keep"  # as what an upload is remembered
    filter: bool = True
    estimate: bool = True
    use_received: bool = True
    store_received: bool = True  # else only a client's first upload is; needs use_received = false
    estimator: Estimator = field(default_factory=Lbfgs)
    aggregator: Aggregator = field(default_factory=Median)

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 1, "alpha", self.alpha, "give a share above 0, at most 1")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")
        require(self.window >= 0, "window", self.window, "give 0 (all) or a number of factors")
        useful = self.estimate or self.use_received
        require(useful, "use_received", False, "without estimates the received updates are needed")
        apart = self.store_received or not self.use_received
        require(apart, "store_received", False, "what is used is stored; set use_received = false")

    @property
    def weighs(self) -> bool:
        """Whether clients may count by their samples; the filter and the estimates do not care."""
        return not self.estimate or isinstance(self.aggregator, WeightedRule)

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        return State(
            no_memory(num_clients, OWN + self.estimator.slots, weights),
            no_uploads(num_clients, weights) if self.rejected == "reference" else (),
            no_history(self.window, weights.device),
            self.estimator.init(num_clients, weights),
            self.aggregator.init(num_clients, weights),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        if not server.plain:  # the model has not moved by the last direction
            state = state._replace(memory=with_model(state.memory, server.weights))
        secant = tiled_secant_products(state.memory, arrival)
        # Of the client's last upload, whatever became of that.
        last = secant_products(state.reference, arrival) if state.reference else secant
        filtered, factors = filter_update(state.factors, last, self.clip_norm, self.alpha)
        arrival = arrival._replace(gradient=scaled(arrival.gradient, filtered.scale))
        accepted = filtered.accepted if self.filter else torch.ones_like(filtered.accepted)
        scores = {"lipschitz": filtered.factor, "threshold": filtered.threshold}
        keep = torch.ones_like(accepted) if self.rejected == "keep" else accepted
        if not self.store_received:
            keep = ~row(state.memory.known, arrival.client)
        entry, notes = self.estimator.observe(state.notes, secant, arrival, keep)
        reference = state.reference and with_upload(state.reference, arrival)
        state = state._replace(factors=factors, notes=notes, reference=reference)
        if self.estimate:
            step, ready, state = self._aggregate(state, arrival, entry, keep, accepted, server)
            direction, scores["distance"] = zero_unless(ready, step.direction), step.distance
        else:
            memory = store_upload(state.memory, arrival, entry, server.weights, keep)
            direction, ready, state = arrival.gradient, accepted, state._replace(memory=memory)
            if server.samples is not None:
                direction = exactly_scaled(direction, own_weight(server.samples, arrival.client))
        bounded = self.estimate  # `after_step` saw to it
        return Decision(accepted, ready, direction, scores, "lipschitz", bounded), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        return State(
            without_client(state.memory, client),
            state.reference and without_uploads(state.reference, client),
            state.factors,
            forget(self.estimator, state.notes, client),
            forget(self.aggregator, state.rule, client),
        )

    def _aggregate(
        self,
        state: State,
        arrival: Arrival,
        entry: Entry,
        keep: Tensor,
        accepted: Tensor,
        server: ServerView,
    ) -> tuple[Step, Tensor, State]:
        """The aggregate over the accepted upload and the estimates of all others."""
        memory, weights, rule = state.memory, server.weights, state.rule
        # The uploading client counts with its upload if that is accepted, else not this round.
        counts = accepted if self.use_received else torch.zeros_like(accepted)
        shares = _shares(self, state)
        present, count = select_participants(memory.known, shares, arrival.client, counts)
        if server.samples is None and _is_order_rule(type(self.aggregator)):
            ranks = cast(OrderRule, self.aggregator).ranks(count)
            selection = Selection(shares, present, *ranks)
            step, memory = order_step(memory, arrival, entry, keep, weights, selection)
        else:
            memory = store_upload(memory, arrival, entry, weights, keep)
            values = combine(memory.vectors, shares.to(weights.dtype), weights)
            own = _root_gradient(self.aggregator, server)
            given = (values, present, own, server.samples)
            direction, rule = apply_rule(self.aggregator, rule, *given)
            step = step_along(memory.vectors, direction, weights, arrival.gradient)
        ready, memory = after_step(memory, step, server.learning_rate, count)
        return step, ready, state._replace(memory=memory, rule=rule)


def estimates(
    defense: SecureAfl, state: State, weights: Float[Tensor, " d"]
) -> Float[Tensor, "n d"]:
    """Estimated gradients of all known clients at the current model; zeros for the others."""
    shares = _shares(defense, state).to(weights.dtype)
    return combine(state.memory.vectors, shares, weights)


def _shares(defense: SecureAfl, state: State) -> Float[Tensor, "n slots"]:
    """Of each remembered vector in its client's estimate."""
    memory = state.memory
    inner = Inner(memory.gram, memory.along, memory.squared)
    return defense.estimator.shares(state.notes, inner)


def last_upload(state: State, arrival: Arrival) -> tuple[Tensor, Tensor, Tensor]:
    """What the filter compares an arrival with: gradient, base, and whether there is one."""
    if state.reference:
        gradient, base, known = (row(kind, arrival.client) for kind in state.reference)
        return gradient, base, known
    vectors, known = state.memory.vectors[:, :, :OWN], state.memory.known
    mine = read_client(vectors, arrival.client, arrival.gradient.numel())
    return mine[GRADIENT], mine[BASE], row(known, arrival.client)


@functools.cache
def _is_order_rule(kind: type) -> bool:
    return issubclass(kind, OrderRule)  # slow, for a protocol


def _root_gradient(rule: Aggregator, server: ServerView) -> Tensor | None:
    """For a rule that compares clients with it."""
    if server.root_data is None or not has_trait(rule, "needs_root_data"):
        return None
    return server.root_data.gradient(server.weights)
