"""How a simulated round is computed: at once, or recorded on a GPU and replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from secureafl.core.server import Server, ServerState
from secureafl.core.trees import name_tensors
from secureafl.core.types import Decision
from secureafl.core.vectors import norm
from secureafl.simulation.recorded import Reading, Recorded

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.simulation.clients import Clients


# Changes the batch of a malicious client, whose number among these comes last.
Poison = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Verdict(NamedTuple):
    """A decision as the host sees it."""

    accepted: bool
    stepped: bool
    scores: dict[str, float]
    reason: str  # why, if it was not accepted


Later = Callable[[], Any]  # gives something that may still be under way


class Eager:
    """Every operation at once, on any device."""

    waits = False  # whether what is asked for may still be under way

    def __init__(self, clients: Clients, poison: Poison, server: Server) -> None:
        self._clients, self._poison, self._server = clients, poison, server

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """Around everything that is computed for this run."""
        return contextlib.nullcontext()

    def gradient(
        self,
        base: Float[Tensor, " d"],
        rows: Int[Tensor, " batch"],
        member: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, " d"]:
        """Of a batch, poisoned first if a `member` of the attackers trains on it."""
        if member is None:
            return self._clients.gradient(base, rows)
        return self._clients.gradient(base, rows, lambda x, y: self._poison(x, y, member))

    def length(self, update: Float[Tensor, " d"]) -> Later:
        """The norm of an update."""
        return lambda: float(norm(update))

    def judge(
        self, state: ServerState, numbers: tuple[int, int, int], update: Tensor, base: Tensor
    ) -> tuple[Later, ServerState]:
        """A verdict, and the server's state after it (less the ledger's part)."""
        on_device = torch.tensor(numbers, device=base.device)
        decision, weights, defense = self._server.judge(
            state.weights, state.defense, on_device, update, base
        )
        figures = torch.stack(_figures(decision))
        state = ServerState(state.round + 1, weights, defense, state.ledger)
        return lambda: _verdict(figures.tolist(), [*decision.scores], decision.reason), state


class Replayed(Eager):
    """Client gradient and server step recorded on a GPU, on a stream of the run's own."""

    waits = True

    def __init__(
        self, clients: Clients, poison: Poison, server: Server, state: ServerState
    ) -> None:
        """`state` is written in place from now on."""
        super().__init__(clients, poison, server)
        self._stream = torch.cuda.Stream()
        self._clean, self._poisoned = Recorded(super().gradient), Recorded(super().gradient)
        tensors = [state.weights, *name_tensors(state.defense, "").values()]
        self._step = Recorded(lambda *given: self._step_in_place(state, *given), tensors)
        self._names: list[str] = []
        self._reason = ""

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """See `Eager`."""
        return torch.cuda.stream(self._stream)

    def gradient(self, base: Tensor, rows: Tensor, member: Tensor | None = None) -> Tensor:
        """See `Eager`."""
        if member is None:
            return self._clean(base, rows)
        # An attack may train again before it uploads; that must not reach what it holds.
        return self._poisoned(base, rows, member).clone()

    def length(self, update: Tensor) -> Later:
        """See `Eager`."""
        reading = Reading(norm(update))
        return lambda: float(reading.get())  # pyrefly: ignore  (a single number)

    def judge(
        self, state: ServerState, numbers: tuple[int, int, int], update: Tensor, base: Tensor
    ) -> tuple[Later, ServerState]:
        """See `Eager`."""
        reading = Reading(self._step(torch.tensor(numbers).pin_memory(), update, base))
        state = state._replace(round=state.round + 1)
        return lambda: _verdict(reading.get(), self._names, self._reason), state

    def _step_in_place(
        self, state: ServerState, numbers: Tensor, update: Tensor, base: Tensor
    ) -> Tensor:
        decision, weights, defense = self._server.judge(
            state.weights, state.defense, numbers, update, base
        )
        self._names, self._reason = [*decision.scores], decision.reason
        figures = torch.stack(_figures(decision))  # before anything they rest on is overwritten
        old = [state.weights, *name_tensors(state.defense, "").values()]
        new = [weights, *name_tensors(defense, "").values()]
        moved = [pair for pair in zip(old, new, strict=True) if pair[0] is not pair[1]]
        for kept, made in moved:
            kept.copy_(made)
        return figures


def _figures(decision: Decision) -> list[Tensor]:
    return [f.double() for f in (decision.accepted, decision.ready, *decision.scores.values())]


def _verdict(figures: list[float], names: list[str], reason: str) -> Verdict:
    accepted, stepped, *scores = figures
    named = dict(zip(names, scores, strict=True))
    return Verdict(bool(accepted), bool(stepped), named, "" if accepted else reason)
