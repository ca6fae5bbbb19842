"""How a simulated round is computed on a GPU: recorded once, and replayed for every arrival."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from secureafl.core.decisions import HostDecision, from_numbers, numbers_of, to_host
from secureafl.core.errors import require
from secureafl.core.server import NORM, Server, ServerState, Upload, name_changing
from secureafl.core.types import Arrival, Decision
from secureafl.kernels.rows import move_model, turn_to_next
from secureafl.linalg.vectors import norm
from secureafl.runtime.batches import ATTACKER, ROUND
from secureafl.simulation.cuda_graph import Reading, Recorded, put_back
from secureafl.simulation.engine import Eager, Jobs

if TYPE_CHECKING:
    from jaxtyping import Int

    from secureafl.core.types import ServerSnapshot
    from secureafl.runtime.attackers import Attackers
    from secureafl.runtime.clients import Clients


class Replayed(Eager):
    """Client gradient and server step recorded on a GPU, on a stream of the run's own.

    Recorded work cannot be told which arrival it is of. It counts them itself, and takes the next
    job, and the model which that answers to, from tables. So its jobs are one, which is another
    each time.
    """

    def __init__(
        self,
        clients: Clients,
        attackers: Attackers,
        server: Server,
        jobs: Jobs,
        seed: int,
        state: ServerState,
        version: Int[np.ndarray, " rounds"],
        further: Int[np.ndarray, "rounds batches batch"],
    ) -> None:
        """`state` is written in place from now on; uploads answer to the models of `version`.

        `further` are the rows that a recorded attack trains on besides its job's.
        """
        gc.collect()  # runs that ended in this process leave their recordings in cycles
        self._places = places = place_models(version)
        moves = np.stack([places[version], places[1:]], axis=1)
        others = further.reshape(len(version), -1), moves
        parts = [jobs, *(torch.from_numpy(numbers).to(jobs) for numbers in others)]
        self._every_job = torch.cat(parts, dim=1)
        self._one_job = self._every_job[:1].clone()
        width = jobs.shape[1]
        super().__init__(clients, attackers, server, self._one_job[:, :width], seed)
        self._further_rows = self._one_job[0, width:-2].view(further.shape[1:])
        self._to = self._one_job[0, -1:]
        self._next, self._job = torch.tensor([state.round], device=jobs.device), 0
        self._models = state.weights.new_zeros(int(places.max()) + 1, state.weights.numel())
        for number, model in state.ledger.models().items():
            self._models[int(places[number])] = model
        self._stepped = False  # whether the model of the round that follows is in its place

        self._stream = stream = torch.cuda.Stream()
        self._outside = torch.cuda.default_stream()
        self._base, self._gradient, self._update = (state.weights.clone() for _ in range(3))
        self._length, self._numbers = Reading(stream), Reading(stream)
        self._expected = self._length
        self._clean = Recorded(self._train_and_measure, stream, [self._next])
        self._poisoned = Recorded(self._train_as_attacker, stream, [self._next])
        self._attacks: dict[int, Recorded] = {}  # by client
        self._other = Recorded(self._measure_update, stream)
        self._state = state
        # Functions of tensors, with where they look for these.
        self._functions: dict[Callable[..., Any], tuple[tuple[Tensor, ...], Recorded]] = {}
        changed = [*name_changing(state).values()]
        self._step = Recorded(lambda: self._step_in_place(state), stream, changed)
        self._norm: Tensor | None = None  # of the update, where the last replay left it
        self._decision: Decision | None = None  # likewise
        stream.wait_stream(self._outside)  # where all that it starts from was made

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
        """See `Eager`; recorded work knows its job and its base by itself."""
        self._now, self._stepped = now, False

    def _turn_to_next(self) -> None:
        places = (self._models, self._base)
        turn_to_next(self._next, self._every_job, self._one_job, *places)

    def train(self) -> Tensor:
        """See `Eager`."""
        return self._made_by(self._clean)

    def _made_by(self, recorded: Recorded) -> Tensor:
        """The update of this arrival, which the recorded work leaves and measures."""
        self._norm = recorded()
        self._expect(self._length)
        return self._update

    def _train_and_measure(self) -> Tensor:
        self._turn_to_next()
        self._update.copy_(super().train())
        return self._measure_update()

    def _measure_update(self) -> Tensor:
        length = norm(self._update)
        self._length.write(length)
        return length

    def attack(self, client: int, snapshot: ServerSnapshot | None) -> Tensor:
        """See `Eager`; an attack that can be recorded is, for each of its clients."""
        self._poisoned()
        trained, attackers = self._trained(self._gradient), self._attackers
        if not attackers.recordable:
            parts = (client, self._now, self.train_on, snapshot)
            return attackers.poison_update(trained, *parts, self._ask if snapshot else None)
        if client not in self._attacks:
            others, changed = [*self._attacks.values()], attackers.changing
            made = Recorded(lambda: self._craft(trained, client), self._stream, changed, others)
            self._attacks[client] = made
        return self._made_by(self._attacks[client])

    def _train_as_attacker(self) -> Tensor:
        self._turn_to_next()
        return self._gradient.copy_(super()._train_poisoned())

    def _craft(self, trained: Arrival, client: int) -> Tensor:
        self._update.copy_(self._attackers.craft_update(trained, client, self._train_further))
        return self._measure_update()

    def _train_further(self, weights: Tensor, number: int) -> Tensor:
        """Part of what is recorded, as against `train_on`."""
        count, remedy = len(self._further_rows), f"it trains on batch {number}; give more"
        require(number < count, "attack.further_batches", count, remedy)
        return super().train_on(weights, self._further_rows[number], self._jobs[0, ATTACKER])

    def train_on(self, weights: Tensor, rows: Tensor, attacker_index: Tensor) -> Tensor:
        """See `Eager`."""
        train = super().train_on
        return self._call(train, train, weights, rows, attacker_index).clone()

    def _ask(self, function: Callable[..., Any], *given: Tensor) -> Any:
        """What a function makes of the defence's decisions; `AttackerView.recorded`."""
        return self._call(function, lambda *room: self._decided(function, *room), *given)

    def _decided(self, function: Callable[..., Any], *given: Tensor) -> Any:
        # One snapshot for all decisions: what its root data say of the model is computed once.
        snapshot = self._server.snapshot(self._state, self._arrivals[0, ROUND])
        return function(lambda update: snapshot.decide(self._trained(update)), *given)

    def _call(self, key: Callable[..., Any], function: Callable[..., Any], *given: Tensor) -> Any:
        """A function of tensors, recorded once for each key."""
        if key not in self._functions:
            room = tuple(tensor.clone() for tensor in given)
            self._functions[key] = room, Recorded(lambda: function(*room), self._stream)
        room, recorded = self._functions[key]
        for place, tensor in zip(room, given, strict=True):
            place.copy_(tensor, non_blocking=True)
        return recorded()

    def measure(self, update: Tensor) -> tuple[Tensor, Callable[[], float]]:
        """See `Eager`; an update made here was measured with the making."""
        if update is not self._update:
            self._update.copy_(update)
            self._made_by(self._other)
        assert self._norm is not None
        return self._norm, self._length.read

    def decide(
        self, state: ServerState, upload: Upload, update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """See `Eager`; the recorded step knows where update and base lie, and writes in place."""
        self._step()
        self._stepped = True
        self._expect(self._numbers)
        assert self._decision is not None
        return self._decision, state

    def to_host(self, decision: Decision) -> HostDecision:
        """See `Eager`; what the recorded step left for the host is not read from the device."""
        if not self._stepped:
            return to_host(decision)  # refused
        assert self._decision is not None
        made = self._decision
        host = from_numbers(self._numbers.read(), [*made.scores], made.reason)
        return host._replace(scores={**host.scores, NORM: self._length.read()})

    def forget(self, state: ServerState, client: int) -> ServerState:
        """See `Eager`; not recorded, because it is rare, but written to where the step looks."""
        forgotten = super().forget(state, client)
        put_back(*(name_changing(s).values() for s in (state, forgotten)))
        return state

    def lendable(self, state: ServerState) -> Tensor:
        """See `Eager`; in the place where the work recorded for its answers will look for it."""
        model = self._models[self._places[state.round]]
        if not self._stepped:
            model.copy_(state.weights)
        return model

    def _expect(self, reading: Reading) -> None:
        reading.expect()
        self._expected = reading

    def _step_in_place(self, state: ServerState) -> Decision:
        server, given = self._server, (self._arrivals[0], self._update, self._base)
        plain = server.optimizer is None
        decision, after = (server.judge if plain else server.decide)(state, *given)
        self._decision = decision
        # Before anything they rest on is overwritten.
        self._numbers.write(numbers_of(decision))
        if plain:  # in one operation
            rate = server.learning_rate
            move_model(state.weights, decision, rate, self._models, self._to)
        else:
            self._models.index_copy_(0, self._to, after.weights[None])
        put_back(*(name_changing(s).values() for s in (state, after)))
        return decision


def place_models(version: Int[np.ndarray, " rounds"]) -> Int[np.ndarray, " models"]:
    """A place for the model of every round, the last one's too, to be kept in while it is needed.

    An upload of round t answers to the model of round `version[t]`. Models that nobody answers to
    share a place, the last. A place is free again as soon as the last answer has come.
    """
    rounds = len(version)
    last = np.full(rounds + 1, -1)
    np.maximum.at(last, version, np.arange(rounds))
    places, free, count = np.full(rounds + 1, -1), list[int](), 0
    for now in range(rounds + 1):
        if last[now] >= 0:
            if not free:
                free.append(count)
                count += 1
            places[now] = free.pop()
        if now < rounds and last[version[now]] == now:
            free.append(int(places[version[now]]))
    return np.where(places < 0, count, places)
