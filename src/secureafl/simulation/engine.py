"""How a simulated round is computed at once; recorded on a GPU: `simulation.replayed`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from secureafl.core.decisions import HostDecision, to_host
from secureafl.core.random import first_draw
from secureafl.core.server import Server, ServerState, Upload
from secureafl.core.types import Arrival, Decision
from secureafl.linalg.vectors import norm
from secureafl.runtime.batches import ATTACKER, ROUND, ROWS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.core.types import ServerSnapshot
    from secureafl.runtime.attackers import Attackers
    from secureafl.runtime.clients import Change, Clients


Jobs = Tensor  # a row for each arrival (`runtime.batches.pack_jobs`)


class Eager:
    """Every operation at once, on any device."""

    def __init__(
        self, clients: Clients, attackers: Attackers, server: Server, jobs: Jobs, seed: int
    ) -> None:
        self._clients, self._attackers, self._server = clients, attackers, server
        self._jobs, self._arrivals, self._batches = jobs, jobs[:, :ATTACKER], jobs[:, ROWS:]
        self._first_draw = first_draw(seed, "privacy")

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """Around everything that is computed for this run."""
        return contextlib.nullcontext()

    @property
    def busy(self) -> bool:
        """Whether what was asked for last is still under way."""
        return False

    def begin(self, now: int, base: Float[Tensor, " d"]) -> None:
        """Turn to the arrival of round `now`, which answers to the model `base`."""
        self._now = self._job = now
        self._base = base

    def train(self) -> Float[Tensor, " d"]:
        """What this arrival's client uploads if it is honest; the attack may take note of it."""
        clients, rows = self._clients, self._batches[self._job]
        if clients.training.privacy.off:
            return self._noted(clients.update(self._base, rows))
        draw = self._first_draw + self._jobs[self._job, ROUND]
        return self._noted(clients.private_update(self._base, rows, draw))

    def attack(self, client: int, snapshot: ServerSnapshot | None) -> Float[Tensor, " d"]:
        """What this arrival's client uploads as an attacker; `snapshot` is what it may see."""
        trained = self._trained(self._train_poisoned())
        parts = (client, self._now, self.train_on, snapshot)
        return self._attackers.poison_update(trained, *parts)

    def _train_poisoned(self) -> Tensor:
        poison = self._poison_as(self._jobs[self._job, ATTACKER])
        return self._noted(self._clients.update(self._base, self._batches[self._job], poison))

    def _trained(self, gradient: Tensor) -> Arrival:
        client, staleness = self._jobs[self._job, :ROUND].unbind()
        return Arrival(client, staleness, gradient, self._base)

    def _noted(self, gradient: Tensor) -> Tensor:
        if self._attackers.listen:
            self._attackers.note(self._jobs[self._job, 0], gradient)
        return gradient

    def train_on(
        self,
        weights: Float[Tensor, " d"],
        rows: Int[Tensor, " batch"],
        attacker_index: Int[Tensor, ""],
    ) -> Float[Tensor, " d"]:
        """Gradient of any batch at any weights, as one of the attackers computes it."""
        return self._clients.gradient(weights, rows, self._poison_as(attacker_index))

    def _poison_as(self, attacker_index: Int[Tensor, ""]) -> Change:
        return lambda inputs, labels: self._attackers.poison_batch(inputs, labels, attacker_index)

    def measure(self, update: Tensor) -> tuple[Float[Tensor, ""], Callable[[], float]]:
        """The norm of what this arrival uploads, and what reads it."""
        length = norm(update)
        return length, lambda: float(length)

    def decide(
        self, state: ServerState, upload: Upload, update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """The server's decision on that upload, and its state after it."""
        return self._server.decide(state, self._arrivals[self._job], update, base)

    def to_host(self, decision: Decision) -> HostDecision:
        """The decision of this arrival, once the engine is no longer busy."""
        return to_host(decision)

    def forget(self, state: ServerState, client: int) -> ServerState:
        """The server's state without what the defence remembers of a client."""
        return self._server.forget(state, client)

    def lendable(self, state: ServerState) -> Float[Tensor, " d"]:
        """The model as it is now, for the clients that will answer to it."""
        return state.weights
