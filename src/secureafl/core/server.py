"""The server: a pure step without sockets, clocks or threads.

The simulator and a deployment are two drivers of `receive`; so every defence exists once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from secureafl.core.errors import ConfigError
from secureafl.core.inactivity import forget
from secureafl.core.ledger import Ledger
from secureafl.core.traits import has_trait
from secureafl.core.trees import name_tensors
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import choose, norm

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.core.protocols import Defense, RootData

# No update or step of use is longer. The bound keeps sums, differences and inner products of
# updates inside float32; longer products are guarded where they are made.
LARGEST_NORM = 1e18
NORM = "norm"  # a score every clean upload has, whatever the defence: its length

_WEIGHING = (
    "use async_sgd, fed_buff, or secure_afl with mean, median, trimmed_mean or geometric_median"
)


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


def name_state(state: ServerState) -> dict[str, Tensor]:
    """The tensors in a state, by the names they have in a checkpoint."""
    lent = {f"ledger.{version}": model for version, model in state.ledger.models().items()}
    return {"weights": state.weights, **name_tensors(state.defense, "defense"), **lent}


class Server(NamedTuple):
    """The fixed part of a server."""

    defense: Defense
    num_clients: int
    learning_rate: float  # eta
    root_data: RootData | None = None
    samples: Float[Tensor, " n"] | None = None  # of each client, float64, if it counts by them

    def start(self, weights: Float[Tensor, " d"]) -> ServerState:
        """State before the first arrival."""
        if self.root_data is None and has_trait(self.defense, "needs_root_data"):
            name = type(self.defense).__name__
            raise ConfigError(f"{name} needs trusted samples: give Server(..., root_data=...)")
        if self.samples is not None and not getattr(self.defense, "weighs", False):
            name = type(self.defense).__name__
            raise ConfigError(
                f"client_weighting = 'samples': {name} cannot weigh its clients; {_WEIGHING}"
            )
        return ServerState(0, weights, self.defense.init(self.num_clients, weights), Ledger())

    def receive(self, state: ServerState, upload: Upload) -> tuple[Decision, ServerState]:
        """Clean, judge, step. Every arrival is a round, whatever becomes of it."""
        base, update = state.ledger.look_up(upload.version), upload.update
        reason = self.objection(state, upload, base)
        if reason:
            return self.refuse(state, upload, reason)
        assert isinstance(update, Tensor)
        assert base is not None
        update = update.detach()
        length = norm(update)
        reason = objection_to_length(float(length), update)
        if reason:
            return self.refuse(state, upload, reason)
        numbers = (upload.client, state.round - upload.version, state.round)
        numbers = torch.tensor(numbers, device=base.device)
        decision, weights, defense = self.judge(state.weights, state.defense, numbers, update, base)
        decision = decision._replace(scores={**decision.scores, NORM: length})
        state.ledger.settle(upload.version)
        return decision, ServerState(state.round + 1, weights, defense, state.ledger)

    def judge(
        self,
        weights: Tensor,
        defense: Any,
        numbers: Int[Tensor, " 3"],
        update: Tensor,
        base: Tensor,
    ) -> tuple[Decision, Tensor, Any]:
        """What the defence makes of a clean upload; `numbers`: client, staleness and round.

        Nothing here looks at a tensor's value, so a GPU can record it.
        """
        client, staleness, now = numbers.unbind()
        arrival = Arrival(client, staleness, update, base)
        view = ServerView(now, weights, self.learning_rate, self.root_data, self.samples)
        decision, defense = self.defense.step(defense, arrival, view)
        ready = decision.ready
        if not decision.bounded:
            ready = ready & (norm(decision.direction) <= LARGEST_NORM)
        moved = torch.add(weights, decision.direction, alpha=-self.learning_rate)
        return decision._replace(ready=ready), choose(ready, moved, weights), defense

    def forget(self, state: ServerState, client: int) -> ServerState:
        """Without what the defence remembers of a client; should it return, it is a new one."""
        number = torch.tensor(client).to(state.weights.device, non_blocking=True)
        return state._replace(defense=forget(self.defense, state.defense, number))

    def refuse(
        self, state: ServerState, upload: Upload, reason: str
    ) -> tuple[Decision, ServerState]:
        """An arrival that reaches no arithmetic."""
        if reason not in ("unknown_client", "unknown_version"):
            state.ledger.settle(upload.version)
        no = torch.zeros((), dtype=torch.bool, device=state.weights.device)
        decision = Decision(no, no, torch.zeros_like(state.weights), {}, reason)
        return decision, state._replace(round=state.round + 1)

    def objection(self, state: ServerState, upload: Upload, base: Tensor | None) -> str:
        """Why this upload is not one, whatever numbers it holds; empty if it is."""
        update, weights = upload.update, state.weights
        if not isinstance(upload.client, int) or not 0 <= upload.client < self.num_clients:
            return "unknown_client"
        if base is None:
            return "unknown_version"
        if not isinstance(update, Tensor) or _form(update) != _form(weights):
            return "wrong_type"
        return "wrong_shape" if update.shape != weights.shape else ""


def objection_to_length(length: float, update: Tensor) -> str:
    """Why an update of this norm must not reach any arithmetic; empty if it may.

    NaN and infinity in any coordinate show up in the norm: one pass for all checks.
    """
    if length <= LARGEST_NORM:
        return ""
    return "too_large" if torch.isfinite(update).all() else "not_finite"


def _form(tensor: Tensor) -> tuple[torch.dtype, torch.layout, torch.device]:
    return tensor.dtype, tensor.layout, tensor.device
