"""How a simulated round is computed: at once, or recorded on a GPU and replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from secureafl.core.decisions import HostDecision, from_numbers, numbers_of, to_host
from secureafl.core.random import first_draw
from secureafl.core.server import NORM, Server, ServerState, Upload, name_changing
from secureafl.core.types import Decision
from secureafl.linalg.vectors import norm
from secureafl.runtime.batches import ATTACKER, ROUND, ROWS
from secureafl.simulation.cuda_graph import Reading, Recorded, put_back

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.runtime.clients import Change, Clients


Jobs = Tensor  # a row for each arrival (`runtime.batches.pack_jobs`)

# Changes the batch of a malicious client, whose number among these comes last.
Poison = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Eager:
    """Every operation at once, on any device."""

    waits = False  # whether what is asked for may still be under way

    def __init__(
        self, clients: Clients, poison: Poison, server: Server, jobs: Jobs, seed: int
    ) -> None:
        self._clients, self._poison, self._server, self._jobs = clients, poison, server, jobs
        self._arrivals, self._batches = jobs[:, :ATTACKER], jobs[:, ROWS:]
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
        self._now, self._base = now, base

    def train(self, poisoned: bool) -> Float[Tensor, " d"]:
        """What this arrival's client makes of its own batches, as an attacker or not."""
        clients, now, rows = self._clients, self._now, self._batches[self._now]
        if poisoned:
            return clients.update(self._base, rows, self._poison_as(self._jobs[now, ATTACKER]))
        if clients.training.privacy.off:
            return clients.update(self._base, rows)
        return clients.private_update(self._base, rows, self._first_draw + self._jobs[now, ROUND])

    def train_on(
        self,
        weights: Float[Tensor, " d"],
        rows: Int[Tensor, " batch"],
        attacker_index: Int[Tensor, ""],
    ) -> Float[Tensor, " d"]:
        """Gradient of any batch at any weights, as one of the attackers computes it."""
        return self._clients.gradient(weights, rows, self._poison_as(attacker_index))

    def _poison_as(self, attacker_index: Int[Tensor, ""]) -> Change:
        return lambda inputs, labels: self._poison(inputs, labels, attacker_index)

    def measure(self, update: Tensor) -> tuple[Float[Tensor, ""], Callable[[], float]]:
        """The norm of what this arrival uploads, and what reads it."""
        length = norm(update)
        return length, lambda: float(length)

    def decide(
        self, state: ServerState, upload: Upload, update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """The server's decision on that upload, and its state after it."""
        return self._server.decide(state, self._arrivals[self._now], update, base)

    def to_host(self, decision: Decision) -> HostDecision:
        """The decision of this arrival, once the engine is no longer busy."""
        return to_host(decision)

    def forget(self, state: ServerState, client: int) -> ServerState:
        """The server's state without what the defence remembers of a client."""
        return self._server.forget(state, client)


class Replayed(Eager):
    """Client gradient and server step recorded on a GPU, on a stream of the run's own.

    What changes from arrival to arrival is copied to where the recorded work looks for it: its jobs
    are one, which is another each time.
    """

    waits = True

    def __init__(
        self,
        clients: Clients,
        poison: Poison,
        server: Server,
        jobs: Jobs,
        seed: int,
        state: ServerState,
    ) -> None:
        """`state` is written in place from now on."""
        super().__init__(clients, poison, server, jobs[:1].clone(), seed)
        self._every_job, self._now, self._base = jobs, 0, state.weights.clone()
        self._stream = stream = torch.cuda.Stream()
        self._outside = torch.cuda.default_stream()
        self._update = torch.zeros_like(state.weights)
        self._length, self._numbers = Reading(stream), Reading(stream)
        self._expected = self._length
        self._clean = Recorded(self._train_and_measure, stream)
        self._poisoned = Recorded(lambda: super(Replayed, self).train(True), stream)
        self._other = Recorded(self._measure_update, stream)
        self._further: tuple[tuple[Tensor, ...], Recorded] | None = None
        changed = [*name_changing(state).values()]
        self._step = Recorded(lambda: self._step_in_place(state), stream, changed)
        self._norm: Tensor | None = None  # of the update, where the last replay left it
        self._decision: Decision | None = None  # likewise

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """See `Eager`."""
        # As `torch.cuda.stream`, which takes several times as long to find out where it is.
        torch.cuda.set_stream(self._stream)
        try:
            yield
        finally:
            torch.cuda.set_stream(self._outside)

    @property
    def busy(self) -> bool:
        """See `Eager`."""
        return self._expected.under_way

    def begin(self, now: int, base: Tensor) -> None:
        """See `Eager`."""
        self._jobs[0].copy_(self._every_job[now])
        self._base.copy_(base)

    def train(self, poisoned: bool) -> Tensor:
        """See `Eager`."""
        if poisoned:
            return self._poisoned()
        self._norm = self._clean()
        self._expect(self._length)
        return self._update

    def _train_and_measure(self) -> Tensor:
        self._update.copy_(super().train(False))
        return self._measure_update()

    def _measure_update(self) -> Tensor:
        length = norm(self._update)
        self._length.write(length)
        return length

    def train_on(self, weights: Tensor, rows: Tensor, attacker_index: Tensor) -> Tensor:
        """See `Eager`."""
        given = (weights, rows, attacker_index)
        if self._further is None:
            room = tuple(tensor.clone() for tensor in given)
            train = super().train_on
            self._further = room, Recorded(lambda: train(*room), self._stream)
        room, recorded = self._further
        for place, tensor in zip(room, given, strict=True):
            place.copy_(tensor, non_blocking=True)
        return recorded().clone()

    def measure(self, update: Tensor) -> tuple[Tensor, Callable[[], float]]:
        """See `Eager`; an update trained here was measured with the training."""
        if update is not self._update:
            self._update.copy_(update)
            self._norm = self._other()
            self._expect(self._length)
        assert self._norm is not None
        return self._norm, self._length.read

    def decide(
        self, state: ServerState, upload: Upload, update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """See `Eager`; the recorded step knows where update and base lie, and writes in place."""
        self._step()
        self._expect(self._numbers)
        assert self._decision is not None
        return self._decision, state

    def to_host(self, decision: Decision) -> HostDecision:
        """See `Eager`; what the recorded step left for the host is not read from the device."""
        if self._decision is None or decision.direction is not self._decision.direction:
            return to_host(decision)  # refused: no step was taken
        made = self._decision
        host = from_numbers(self._numbers.read(), [*made.scores], made.reason)
        return host._replace(scores={**host.scores, NORM: self._length.read()})

    def forget(self, state: ServerState, client: int) -> ServerState:
        """See `Eager`; not recorded, because it is rare, but written to where the step looks."""
        forgotten = super().forget(state, client)
        put_back(*(name_changing(s).values() for s in (state, forgotten)))
        return state

    def _expect(self, reading: Reading) -> None:
        reading.expect()
        self._expected = reading

    def _step_in_place(self, state: ServerState) -> None:
        decision, after = self._server.decide(state, self._arrivals[0], self._update, self._base)
        self._decision = decision
        # Before anything they rest on is overwritten.
        self._numbers.write(numbers_of(decision))
        put_back(*(name_changing(s).values() for s in (state, after)))
