"""SecureAFL hardened: a mean of every client's recent update, weighted by trust.

As in SecureAFL the server keeps what each client uploaded and steps, at every arrival, along the
updates of all clients; nobody is waited for. But the published filter compares a client with
itself, so it cannot see a consistently malicious one, and a coordinate-wise median loses what only
a few clients know. Here the step is a mean, and trust decides the weights (`core.trust`):

- norm clipping: no update is longer than the median client's;
- arrival decay: an old update was computed at a model the server has left, so it counts less;
- similarity penalty: a group of clients with alike updates, as colluders send them, counts hardly
  more than a group of typical size;
- disagreement penalty: a client whose updates oppose those of others more than is typical counts
  less;
- consistency: a client whose updates are mostly noise counts less;
- curvature: along the way the model moves, the gradient of an honest client's loss changes with
  positive curvature. The published filter asks how much an upload changed for the model's move;
  this asks in which direction.

No root data, no number of attackers to guess.

The SecureAFL project, "Robustness: where the published rule breaks", docs/robustness.md, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from secureafl.core.errors import require
from secureafl.core.trees import name_tensors
from secureafl.core.trust import ClientStats, TrustConfig, no_client_stats
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.core.uploads import Uploads, no_uploads, without_uploads
from secureafl.kernels.operations import (
    secant_products,
    update_momentum,
    update_stats,
    weigh_clients,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_COUNTED = 0.5  # of a typical client's weight: with less, an upload is reported as not accepted


class State(NamedTuple):
    """What survives an arrival. Row k is client k's."""

    sent: Uploads  # the last upload as it came, and the model under it
    recent_update: Float[Tensor, "n d"]  # momentum of few uploads: steps are made of it
    update_history: Float[Tensor, "n d"]  # momentum of many: trust is computed from it
    stats: ClientStats


@dataclass(frozen=True)
class SecureAflHardened:
    """Mean of the clients' recent updates, weighted by trust; every part can be off."""

    clip_norm: float = 50.0  # G, the longest first upload of a client
    clip_to_median_norm: bool = True  # uploads longer than the clients' median, to that
    short_momentum: float = 0.5  # of a client's recent update, per upload
    long_momentum: float = 0.95  # of its update history, per upload
    arrival_decay: float = 0.8  # of a recent update's weight, per arrival; 1: none
    similarity_penalty: float = 4.0  # how sharply alike clients lose weight; 0: not at all
    disagreement_penalty: float = 4.0  # how sharply an opposed client does; 0: not at all
    consistency: bool = True  # whether noise loses weight
    curvature: bool = True  # whether negative curvature loses weight

    def __post_init__(self) -> None:
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")
        for name in ("short_momentum", "long_momentum"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "give 0 (only the last upload) to below 1")
        require(
            0 < self.arrival_decay <= 1,
            "arrival_decay",
            self.arrival_decay,
            "give a share above 0, at most 1",
        )
        for name in ("similarity_penalty", "disagreement_penalty"):
            value = getattr(self, name)
            require(0 <= value <= 64, name, value, "give 0 (off) to 64")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        rows = weights.new_zeros(num_clients, weights.numel())
        stats = no_client_stats(num_clients, weights.device)
        return State(no_uploads(num_clients, weights), rows, rows.clone(), stats)

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        sent, recent_update, update_history, stats = state
        client, secant = arrival.client, secant_products(sent, arrival)
        limits = (self.clip_norm, self.clip_to_median_norm, self.long_momentum)
        scale = update_stats(stats, sent.known, client, secant, *limits)
        memories = (self.short_momentum, self.long_momentum)
        mine = update_momentum(
            sent, recent_update, update_history, arrival, secant.known, scale, *memories
        )
        weights = weigh_clients(
            stats, sent.known, client, update_history @ mine, self._trust_config
        )
        accepted, ready = weights.own >= _COUNTED, weights.total > 0
        direction, scores = weights.shares @ recent_update, {"weight": weights.own}
        # A mean of uploads is not longer than the longest.
        return Decision(accepted, ready, direction, scores, "trust", bounded=True), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        for rows in name_tensors(
            (state.recent_update, state.update_history, state.stats), ""
        ).values():
            rows.index_fill_(0, client.view(1), 0)
        # The others' products with it stay until its next upload; nobody looks at them.
        return state._replace(sent=without_uploads(state.sent, client))

    @property
    def _trust_config(self) -> TrustConfig:
        settings = (
            self.arrival_decay,
            self.similarity_penalty,
            self.disagreement_penalty,
            self.consistency,
            self.curvature,
        )
        return TrustConfig(self.long_momentum, *settings)
