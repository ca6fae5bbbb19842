"""The server: a pure step without sockets, clocks or threads.

The simulator and a deployment are two drivers of `receive`; so every defence exists once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from secureafl.core.errors import ConfigError
from secureafl.core.ledger import Ledger
from secureafl.core.traits import has_trait
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.core.vectors import norm

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.protocols import Defense, Trusted

# No update or step of use is longer. The bound keeps sums and differences of updates, and the
# weights after any number of rounds, inside float32; products are guarded where they are made.
LARGEST_NORM = 1e20


class Upload(NamedTuple):
    """What came in, unchecked."""

    client: int
    version: int  # of the model it answers to, as noted in the ledger's own ticket
    update: object


class ServerState(NamedTuple):
    """All that survives an arrival."""

    round: int  # t
    weights: Float[Tensor, " d"]  # w^t
    defense: Any
    ledger: Ledger


class Server(NamedTuple):
    """The fixed part of a server."""

    defense: Defense
    num_clients: int
    learning_rate: float  # eta
    trusted: Trusted | None = None

    def start(self, weights: Float[Tensor, " d"]) -> ServerState:
        """State before the first arrival."""
        if self.trusted is None and has_trait(self.defense, "needs_trusted"):
            name = type(self.defense).__name__
            raise ConfigError(f"{name} needs trusted samples: give Server(..., trusted=...)")
        return ServerState(0, weights, self.defense.init(self.num_clients, weights), Ledger())

    def receive(self, state: ServerState, upload: Upload) -> tuple[Decision, ServerState]:
        """Clean, judge, step. Every arrival is a round, whatever becomes of it."""
        base = state.ledger.look_up(upload.version)
        reason = self._objection(state, upload, base)
        if reason not in ("unknown_client", "unknown_version"):
            state.ledger.settle(upload.version)
        if reason:
            return _refusal(state.weights, reason), state._replace(round=state.round + 1)
        assert isinstance(upload.update, Tensor)
        assert base is not None
        arrival = Arrival(
            torch.tensor(upload.client, device=base.device),
            torch.tensor(state.round - upload.version, device=base.device),
            upload.update.detach(),
            base,
        )
        now = torch.tensor(state.round, device=base.device)
        view = ServerView(now, state.weights, self.learning_rate, self.trusted)
        decision, kept = self.defense.step(state.defense, arrival, view)
        moved = state.weights - self.learning_rate * decision.direction
        ready = decision.ready & (norm(decision.direction) <= LARGEST_NORM)
        weights = torch.where(ready, moved, state.weights)
        decision = decision._replace(ready=ready)
        return decision, ServerState(state.round + 1, weights, kept, state.ledger)

    def _objection(self, state: ServerState, upload: Upload, base: Tensor | None) -> str:
        """Why this upload must not reach any arithmetic; empty if it may."""
        update, weights = upload.update, state.weights
        if not isinstance(upload.client, int) or not 0 <= upload.client < self.num_clients:
            return "unknown_client"
        if base is None:
            return "unknown_version"
        if not isinstance(update, Tensor) or _form(update) != _form(weights):
            return "wrong_type"
        if update.shape != weights.shape:
            return "wrong_shape"
        # NaN and infinity in any coordinate show up in the norm: one pass for all checks.
        length = float(norm(update.detach()))
        if not length < torch.inf:
            return "not_finite"
        return "too_large" if length > LARGEST_NORM else ""


def _form(tensor: Tensor) -> tuple[torch.dtype, torch.layout, torch.device]:
    return tensor.dtype, tensor.layout, tensor.device


def _refusal(weights: Tensor, reason: str) -> Decision:
    no = torch.zeros((), dtype=torch.bool, device=weights.device)
    return Decision(no, no, torch.zeros_like(weights), {}, reason)
