"""SecureAFL: filter each upload by its Lipschitz smoothness, estimate everybody else, aggregate.

An upload that changed more than its base model explains, compared with the same client's last
one, is left out; what every other known client would have sent on the current model is estimated;
a robust rule over all of it gives the step. So the server never waits, and a lone upload never
steers the model.

The paper's ablation variants are settings: `aggregator = "mean"` (I), `estimate = false` (II),
`filter = false` (III), `use_received = false` (IV).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from secureafl.aggregators.median import Median
from secureafl.core.errors import require
from secureafl.core.protocols import Aggregator, Estimator
from secureafl.core.quantile import History, no_history, observe, quantile
from secureafl.core.types import Arrival, Decision
from secureafl.core.uploads import Uploads, no_uploads, with_upload
from secureafl.core.vectors import norm, row, set_row
from secureafl.estimators.lbfgs import Lbfgs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    reference: Uploads  # what the next Lipschitz factor is measured against
    accepted: Uploads | tuple[()]  # what estimates start from; () where it is the reference
    factors: History  # Q
    memory: Any  # the estimator's
    rule: Any  # the aggregator's


@dataclass(frozen=True)
class SecureAfl:
    """The rule of the paper, with its open points settled (docs/algorithm.md)."""

    alpha: float = 0.8  # share of Lipschitz factors that pass
    clip_norm: float = 50.0  # G, for a client's first upload, which has no factor
    window: int = 0  # of Q; 0 keeps all factors ever seen
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
            no_uploads(num_clients, weights),
            no_uploads(num_clients, weights) if self.rejected == "reference" else (),
            no_history(self.window, weights.device),
            self.estimator.init(num_clients, weights),
            self.aggregator.init(num_clients, weights),
        )

    def step(self, state, arrival, server):
        met = row(state.reference.known, arrival.client)
        arrival = arrival._replace(gradient=_first_clipped(arrival, met, self.clip_norm))
        factor, comparable = _lipschitz_factor(state.reference, arrival, met)
        factors = observe(state.factors, factor, comparable, calls=server.round)
        threshold = quantile(factors, self.alpha)
        accepted = ~comparable | (factor <= threshold) | (not self.filter)
        direction, ready, rule = self._direction(state, arrival, accepted, server.weights)
        state = self._remembered(state._replace(factors=factors, rule=rule), arrival, accepted)
        scores = {"lipschitz": torch.where(comparable, factor, torch.nan), "threshold": threshold}
        return Decision(accepted, ready, direction, scores, "lipschitz"), state

    def _direction(self, state: State, arrival: Arrival, accepted: Tensor, weights: Tensor):
        """The aggregate over the accepted upload and the estimates of all others."""
        if not self.estimate:
            return arrival.gradient, accepted, state.rule
        uploads = state.accepted or state.reference
        values = self.estimator.estimate(state.memory, uploads, weights)
        counts = accepted & self.use_received
        # A client has one voice: its upload if that counts, else nothing this round.
        set_row(values, arrival.client, arrival.gradient, counts)
        present = uploads.known.clone()
        set_row(present, arrival.client, counts, torch.ones_like(counts))
        direction, rule = self.aggregator.aggregate(state.rule, values, present)
        ready = present.any()
        return torch.where(ready, direction, 0), ready, rule

    def _remembered(self, state: State, arrival: Arrival, accepted: Tensor) -> State:
        as_reference = accepted | (self.rejected != "forget")
        as_estimate = accepted | (self.rejected == "keep")
        uploads = state.accepted or state.reference
        memory = self.estimator.remember(state.memory, uploads, arrival, as_estimate)
        kept = state.accepted and with_upload(state.accepted, arrival, as_estimate)
        reference = with_upload(state.reference, arrival, as_reference)
        return state._replace(reference=reference, accepted=kept, memory=memory)


def _first_clipped(arrival: Arrival, met: Bool[Tensor, ""], radius: float) -> Float[Tensor, " d"]:
    """First contact has no Lipschitz factor; its norm is bounded instead."""
    length = norm(arrival.gradient)
    scale = torch.where(~met & (length > radius), radius / length, 1.0)
    return arrival.gradient * scale.to(arrival.gradient.dtype)


def _lipschitz_factor(reference: Uploads, arrival: Arrival, met: Tensor) -> tuple[Tensor, Tensor]:
    """The factor ||g - g_last|| / ||w_base - w_base_last||, and whether it is defined."""
    change = norm(arrival.gradient - row(reference.gradient, arrival.client))
    step = norm(arrival.base - row(reference.base, arrival.client))
    comparable = met & (step > 0)
    return torch.where(comparable, change / step, 0), comparable
