"""One asynchronous run under attack.

Everything random that does not depend on training (who is malicious, who holds what, who uploads
when, on which batch) is drawn before the first round; so every defence faces the same trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from secureafl.arrivals.trace import checked
from secureafl.core.errors import RunError, require
from secureafl.core.events import Event, ForgottenEvent
from secureafl.core.flat_model import flatten
from secureafl.core.inactivity import InactivityTracker
from secureafl.core.random import first_draw, numpy_generator
from secureafl.core.server import ServerState, Upload, name_state
from secureafl.core.traits import has_trait
from secureafl.core.trees import rebuild
from secureafl.experiment import Experiment
from secureafl.runtime.attackers import Attackers, choose_malicious
from secureafl.runtime.batches import ROWS, draw_batches, pack_jobs
from secureafl.runtime.clients import Clients
from secureafl.runtime.devices import ComputeContext, choose_device
from secureafl.runtime.events import arrival_event, evaluation_event
from secureafl.runtime.exposure import exposure
from secureafl.runtime.loading import load_data
from secureafl.runtime.memory import estimate_memory, refuse_too_large, refuse_too_long
from secureafl.runtime.model_checks import check_model
from secureafl.runtime.root_data import root_data_for
from secureafl.runtime.setup import count_labels, deal_samples, make_server, seeded_model
from secureafl.simulation.engine import Eager
from secureafl.simulation.replayed import Replayed

if TYPE_CHECKING:
    from secureafl.core.events import EvaluationEvent
    from secureafl.partitions.shards import Shards


def simulate(experiment: Experiment) -> Iterator[Event]:
    """Run the experiment in memory and yield what happens.

    >>> task = secureafl.tasks.FashionMnist(data_dir="embedded")
    >>> events = [*secureafl.simulate(secureafl.Experiment(rounds=3, clients=2, task=task))]
    >>> events[0].round, [*events[0].metrics], sum(hasattr(event, "client") for event in events)
    (0, ['ter'], 3)
    """
    remedy = "give an Experiment; from_mapping and read_experiment make one"
    require(isinstance(experiment, Experiment), "experiment", experiment, remedy)
    simulation = Simulation(experiment)
    for events in simulation.turns():
        yield from events


class Simulation:
    """A run that can be advanced arrival by arrival, saved and restored."""

    def __init__(self, experiment: Experiment) -> None:
        """Load the data and draw everything that is fixed before training."""
        self.experiment = experiment
        self.device = choose_device(experiment.device)
        self.compute = ComputeContext(experiment.threads, experiment.kernels, self.device)
        with self.compute:
            self._prepare()

    def _prepare(self) -> None:
        made = self.experiment
        refuse_too_long(made)
        data, there = load_data(made.task, self.device)
        self.data_source, self.data_fingerprint = data.source, data.fingerprint
        self.shards: Shards = deal_samples(made, data)
        self.holdings = count_labels(data, self.shards)
        self._evaluated = made.evaluation.rounds(made.rounds)

        model = seeded_model(made, self.device)
        self._clients = Clients(made.task, there, model, made.scheduled_training)
        check_model(self._clients)
        malicious = choose_malicious(made, self.shards.group)
        rng = numpy_generator(made.seed, "arrivals")
        drawn = made.arrivals.draw(made.rounds, malicious, rng)
        self.trace = checked(drawn, made.rounds, made.clients)
        weights = flatten(model)
        needs = (made.defense, made.clients, weights.numel(), self.trace.version)
        self.memory = estimate_memory(*needs, made.server_optimizer, made.attack)
        refuse_too_large(self.memory, self.device)
        number = np.cumsum(malicious) - 1  # among the malicious ones
        self._attackers = Attackers(made, self.shards, self._clients, malicious, number)
        self._draw_jobs()
        self._start_server(weights)

    def _draw_jobs(self) -> None:
        made = self.experiment
        rng = numpy_generator(made.seed, "batches")
        rows = draw_batches(self.trace.client, self.shards.rows, made.training.samples, rng)
        jobs = pack_jobs(self.trace, self._attackers.number, rows)
        self._jobs = torch.from_numpy(jobs).to(self.device)
        # How many arrivals will answer to the model of each round: that long it must be kept.
        self._answers = np.bincount(self.trace.version, minlength=made.rounds + 1)

    def _start_server(self, weights: Tensor) -> None:
        made, samples = self.experiment, None
        root_data = root_data_for(made, self._clients)
        if made.client_weighting == "samples":
            held = [len(rows) for rows in self.shards.rows]
            samples = torch.tensor(held, dtype=torch.float64, device=self.device)
        seed = first_draw(made.seed, "defense")
        self._server = make_server(made, self._clients.model, root_data, samples, seed)
        self._state = self._server.start(weights)
        self._inactivity = InactivityTracker(made.forget_after)
        self._start_engine()
        with self._engine.here():
            self._lend(self._state)

    @property
    def round(self) -> int:
        """Arrivals so far."""
        return self._state.round

    @property
    def finished(self) -> bool:
        """Whether all arrivals have come."""
        return self.round >= self.experiment.rounds

    @property
    def malicious(self) -> np.ndarray:
        """Which clients are, for all clients."""
        return self._attackers.malicious

    @property
    def weights(self) -> Tensor:
        """The global model."""
        return self._state.weights

    @property
    def clients(self) -> Clients:
        """Computes the clients' gradients; use it inside `compute`, the context of this run."""
        return self._clients

    @property
    def defense_state(self) -> Any:
        """What the defence remembers. Read only, and only until the next arrival."""
        return self._state.defense

    @property
    def privacy(self) -> dict[str, Any] | None:
        """What the whole run costs its clients; None where nothing protects them."""
        training = self.experiment.training
        if training.privacy.off:
            return None
        steps = self._jobs[:, ROWS:].unflatten(1, (training.local_steps, -1)).cpu().numpy()
        return exposure(training.privacy, self.trace.client, steps, ~self.malicious)

    def advance(self) -> list[Event]:
        """One arrival; the events are its own and, where due, an evaluation."""
        return next(events for events in self.turns() if events)

    def turns(self) -> Iterator[list[Event]]:
        """The whole run, in turns: an arrival's events, or none while a GPU is at work.

        Between two that hold events the state is whole; several runs can share a GPU by turns.
        """
        while not self.finished:
            yield from self._arrival()

    def _arrival(self) -> Iterator[list[Event]]:
        events: list[Event] = []
        stages = self._stages(events)
        while True:
            with self.compute, self._engine.here():
                # On to the next wait or to the end: where nothing is waited for, in one go.
                waiting = any(self._engine.busy for _ in stages)
            if not waiting:
                break
            yield []
            while self._engine.busy:
                yield []
        yield events

    def _stages(self, events: list[Event]) -> Iterator[None]:
        """One arrival, whose events are appended; at each `yield` the engine may be busy."""
        now = self.round
        client, version = int(self.trace.client[now]), int(self.trace.version[now])
        if now == 0:
            events.append(self._evaluate())
        upload = Upload(client, version, self._update(client, version))
        decision, state = yield from self._server.stages(self._state, upload, self._engine)
        host, malicious = self._engine.to_host(decision), self._attackers.attacks(client, now)
        self._lend(state)
        events.append(arrival_event(host, now, client, malicious, now - version))
        self._inactivity.mark_active(client, now)
        self._state: ServerState = self._forget_inactive(state, events)
        if state.round in self._evaluated:
            events.append(self._evaluate())

    def _forget_inactive(self, state: ServerState, events: list[Event]) -> ServerState:
        """Forget the clients that have not uploaded for long."""
        for client in self._inactivity.due(state.round):
            state = self._engine.forget(state, client)
            events.append(ForgottenEvent(state.round, client))
        return state

    def _lend(self, state: ServerState) -> None:
        answers = int(self._answers[state.round])
        if answers:
            state.ledger.lend(state.round, self._engine.lendable(state), answers)

    def _update(self, client: int, version: int) -> Tensor:
        """What the client uploads: its gradient, or what the attack makes of it."""
        now, attackers = self.round, self._attackers
        base = self._state.ledger.look_up(version)
        assert base is not None, "the trace and the ledger disagree"
        self._engine.begin(now, base)
        if not attackers.attacks(client, now):
            return self._engine.train()
        snapshot = self._server.snapshot(self._state) if attackers.see_server else None
        return self._engine.attack(client, snapshot)

    def _start_engine(self) -> None:
        attackers, seed = self._attackers, self.experiment.seed
        parts = (self._clients, attackers, self._server, self._jobs, seed)
        if not self._can_record():
            self._engine = Eager(*parts)
            return
        further = attackers.draw_further(self.trace.client)
        self._engine = Replayed(*parts, self._state, self.trace.version, further)

    def _can_record(self) -> bool:
        return self.device.type == "cuda" and not has_trait(self._server.defense, "on_host")

    def _evaluate(self) -> EvaluationEvent:
        return evaluation_event(self.round, self.weights, self._clients, self._attackers)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that changes during a run, as named arrays."""
        named = {
            "round": torch.tensor(self.round),
            **name_state(self._state),
            **self._attackers.snapshot(),
        }
        with self._engine.here():  # after what is under way there
            return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Go on from a snapshot of the same experiment."""
        with self.compute:
            self._restore(snapshot)

    def _restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        named = {name: torch.from_numpy(array.copy()) for name, array in snapshot.items()}
        try:
            now = int(named["round"])
            state = self._server.start(named["weights"].to(self.device))
            defense = rebuild(self._state.defense, "defense", named)
            optimizer = rebuild(self._state.optimizer, "optimizer", named)
            self._attackers.restore(named)
            left = np.bincount(self.trace.version[now:], minlength=self.experiment.rounds + 1)
            for version in np.flatnonzero(left[: now + 1]):
                model = named[f"ledger.{version}"].to(self.device)
                state.ledger.lend(int(version), model, int(left[version]))
        except KeyError as error:
            said = f"the checkpoint lacks {error}: it is of another experiment or version"
            remedy = "finish the run with the version that its provenance.json names"
            raise RunError(f"{said}; {remedy}") from error
        self._state = state._replace(round=now, defense=defense, optimizer=optimizer)
        self._inactivity = InactivityTracker(self.experiment.forget_after)
        for earlier in range(max(0, now - self.experiment.forget_after), now):
            self._inactivity.mark_active(int(self.trace.client[earlier]), earlier)
        self._start_engine()
