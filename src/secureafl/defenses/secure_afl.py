"""SecureAFL: filter each upload by its Lipschitz smoothness, estimate everybody else, aggregate.

An upload that changed more than its base model explains, compared with the same client's last
one, is left out; what every other known client would have sent on the current model is estimated;
a robust rule over all of it gives the step. So the server never waits, and a lone upload never
steers the model.

The paper's ablation variants are settings: `aggregator = "mean"` (I), `estimate = false` (II),
`filter = false` (III), `use_received = false` (IV).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from secureafl.aggregators.median import Median
from secureafl.core.errors import require
from secureafl.core.protocols import Aggregator, Estimator, OrderRule
from secureafl.core.quantile import History, no_history, observe, quantile
from secureafl.core.server import LARGEST_NORM
from secureafl.core.types import Arrival, Decision, Entry, Inner, News, ServerView
from secureafl.core.uploads import Uploads, no_uploads, with_upload
from secureafl.core.vectors import row, scale_where, zero_unless
from secureafl.estimators.lbfgs import Lbfgs
from secureafl.kernels.memory import Memory, after_step, meet, no_memory
from secureafl.kernels.operations import exchange, order_step
from secureafl.kernels.step import Choice, moves_since, step_along
from secureafl.kernels.tiles import GRADIENT, OWN, combine

if TYPE_CHECKING:
    from jaxtyping import Float
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
        news = meet(state.memory, arrival)
        last = _since_last_upload(state.reference, arrival) if state.reference else news
        arrival = arrival._replace(gradient=_first_clipped(arrival, last, self.clip_norm))
        factor, comparable = _lipschitz_factor(last)
        factors = observe(state.factors, factor, comparable)
        threshold = quantile(factors, self.alpha)
        # A factor that is not defined is 0, and passes.
        accepted = factor <= threshold if self.filter else torch.ones_like(comparable)
        scores = {"lipschitz": torch.where(comparable, factor, torch.nan), "threshold": threshold}
        keep = torch.ones_like(accepted) if self.rejected == "keep" else accepted
        entry, notes = self.estimator.remember(state.notes, news, arrival, keep)
        reference = state.reference and with_upload(state.reference, arrival)
        state = state._replace(factors=factors, notes=notes, reference=reference)
        if self.estimate:
            direction, ready, state = self._aggregate(state, arrival, entry, keep, accepted, server)
        else:
            memory = exchange(state.memory, arrival, entry, server.weights, keep)
            direction, ready, state = arrival.gradient, accepted, state._replace(memory=memory)
        return Decision(accepted, ready, direction, scores, "lipschitz"), state

    def _aggregate(
        self,
        state: State,
        arrival: Arrival,
        entry: Entry,
        keep: Tensor,
        accepted: Tensor,
        server: ServerView,
    ) -> tuple[Tensor, Tensor, State]:
        """The aggregate over the accepted upload and the estimates of all others."""
        memory, weights, rule = state.memory, server.weights, state.rule
        # A client has one voice: its upload if that counts, else nothing this round.
        index = arrival.client.view(1)
        voice = accepted if self.use_received else torch.zeros_like(accepted)
        present = memory.known.index_copy(0, index, voice.view(1))
        inner = Inner(memory.gram, memory.along, memory.squared)
        shares = self.estimator.shares(state.notes, inner).index_fill_(0, index, 0)
        shares[:, GRADIENT].index_fill_(0, index, 1)
        if _is_order_rule(type(self.aggregator)):
            choice = Choice(shares, present, *self.aggregator.ranks(present.sum()))
            step, memory = order_step(memory, arrival, entry, keep, weights, choice)
        else:
            memory = exchange(memory, arrival, entry, weights, keep)
            values = combine(memory.vectors, shares.to(weights.dtype), weights)
            direction, rule = self.aggregator.aggregate(rule, values, present)
            step = step_along(memory.vectors, direction, weights)
        # The server would not take a longer step, and then the inner products would be wrong.
        ready = present.any() & (step.squared <= LARGEST_NORM**2)
        memory = after_step(memory, step, server.learning_rate, ready)
        state = state._replace(memory=memory, rule=rule)
        return zero_unless(ready, step.direction), ready, state


@functools.cache
def _is_order_rule(kind: type) -> bool:
    return issubclass(kind, OrderRule)  # slow, for a protocol


def _since_last_upload(reference: Uploads, arrival: Arrival) -> News:
    """As `meet`, but beside the client's last upload whatever became of that."""
    gradient, base = (row(kind, arrival.client) for kind in (reference.gradient, reference.base))
    return News(row(reference.known, arrival.client), *moves_since(gradient, base, arrival))


def _first_clipped(arrival: Arrival, news: News, radius: float) -> Float[Tensor, " d"]:
    """First contact has no Lipschitz factor; its norm is bounded instead."""
    too_long = ~news.known & (news.squared > radius**2)
    return scale_where(too_long, arrival.gradient, lambda: radius * news.squared.rsqrt())


def _lipschitz_factor(news: News) -> tuple[Tensor, Tensor]:
    """The factor ||g - g_last|| / ||w_base - w_base_last||, and whether it is defined."""
    comparable = news.known & (news.step_step > 0)
    return torch.where(comparable, (news.change_change / news.step_step).sqrt(), 0), comparable
