"""One asynchronous run under attack.

Everything random that does not depend on training (who is malicious, who holds what, who uploads
when, on which batch) is drawn before the first round; so every defence faces the same trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event, ForgottenEvent
from secureafl.core.inactivity import InactivityTracker
from secureafl.core.protocols import Backdoor
from secureafl.core.random import numpy_generator, torch_generator
from secureafl.core.server import NORM, Server, ServerState, Upload, name_state, objection_to_length
from secureafl.core.traits import has_trait
from secureafl.core.trees import rebuild
from secureafl.core.types import Arrival, Data
from secureafl.kernels.dispatch import use_kernels
from secureafl.linalg.vectors import flatten
from secureafl.runtime.attackers import Attackers
from secureafl.runtime.batches import ROWS, draw_batches, pack_jobs
from secureafl.runtime.clients import Clients, on_device
from secureafl.runtime.exposure import exposure
from secureafl.runtime.root_data import root_data_for
from secureafl.simulation.engine import Eager, HostDecision, Later, Replayed

if TYPE_CHECKING:
    from secureafl.arrivals.trace import Trace
    from secureafl.experiment import Experiment
    from secureafl.partitions.shards import Shards


def simulate(experiment: Experiment) -> Iterator[Event]:
    """Run the experiment in memory and yield what happens."""
    simulation = Simulation(experiment)
    for events in simulation.turns():
        yield from events


class Simulation:
    """A run that can be advanced arrival by arrival, saved and restored."""

    def __init__(self, experiment: Experiment) -> None:
        """Load the data and draw everything that is fixed before training."""
        if experiment.threads:
            torch.set_num_threads(experiment.threads)
        use_kernels(experiment.kernels)
        self.experiment = experiment
        self.device = choose_device(experiment.device)
        data = experiment.task.load()
        self.data_source, self.data_fingerprint = data.source, data.fingerprint
        self.shards: Shards = deal_samples(experiment, data)
        self.holdings = _holdings(data, self.shards)
        self.trace = self._draw_trace()
        self._evaluated = experiment.evaluation.rounds(experiment.rounds)

        model = seeded_model(experiment, self.device)
        parts = (experiment.task, on_device(data, self.device), model)
        self._clients = Clients(*parts, experiment.training)
        self._clients.refuse_hidden_state()
        self._clients.refuse_mixing()
        self._attackers = Attackers(experiment, self.shards, self._clients)
        self._draw_jobs()
        self._start_server(flatten(model))

    def _draw_trace(self) -> Trace:
        made = self.experiment
        rng = numpy_generator(made.seed, "arrivals")
        return made.arrivals.draw(made.rounds, made.clients, rng)

    def _draw_rows(self) -> np.ndarray:
        made = self.experiment
        rng = numpy_generator(made.seed, "batches")
        return draw_batches(self.trace.client, self.shards.rows, made.training.samples, rng)

    def _draw_jobs(self) -> None:
        made, rows = self.experiment, self._draw_rows()
        jobs = pack_jobs(self.trace, self._attackers.number, rows)
        self._jobs = torch.from_numpy(jobs).to(self.device)
        # How many arrivals will answer to the model of each round: that long it must be kept.
        self._answers = np.bincount(self.trace.version, minlength=made.rounds + 1)

    def _start_server(self, weights: Tensor) -> None:
        made, samples = self.experiment, None
        trusted = root_data_for(made, self._clients)
        if made.client_weighting == "samples":
            held = [len(rows) for rows in self.shards.rows]
            samples = torch.tensor(held, dtype=torch.float64, device=self.device)
        rate = made.training.server_rate
        self._server = Server(made.defense, made.clients, rate, trusted, samples)
        self._state = self._server.start(weights)
        self._inactivity = InactivityTracker(made.forget_after)
        self._start_engine()
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
        """Whose gradients can be asked for."""
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
        engine, now = self._engine, self.round
        client, version = int(self.trace.client[now]), int(self.trace.version[now])
        with engine.here():
            events: list[Event] = [self._evaluate()] if now == 0 else []
            upload = Upload(client, version, self._update(client, version))
            checked = self._checked(upload)
        while engine.busy:
            yield []
        with engine.here():
            verdict, state = self._received(upload, *checked())
        while engine.busy:
            yield []
        with engine.here():
            found, malicious = verdict(), self._attackers.attacks(client, now)
            self._lend(state)
            events.append(arrival_event(found, now, client, malicious, now - version))
            self._inactivity.mark_active(client, now)
            self._state: ServerState = self._forget_inactive(state, events)
            if state.round in self._evaluated:
                events.append(self._evaluate())
        yield events

    def _forget_inactive(self, state: ServerState, events: list[Event]) -> ServerState:
        """Forget whoever was not heard of for long."""
        for client in self._inactivity.due(state.round):
            state = self._engine.forget(state, client)
            events.append(ForgottenEvent(state.round, client))
        return state

    def _checked(self, upload: Upload) -> Later:
        """Why the server will not take this upload, and its length; to be known later."""
        base = self._state.ledger.look_up(upload.version)
        reason, update = self._server.objection(self._state, upload, base), upload.update
        if reason:
            return lambda: (reason, math.nan)
        assert isinstance(update, Tensor)
        later = self._engine.length(update)

        def found() -> tuple[str, float]:
            length = later()
            return objection_to_length(length, update), length

        return found

    def _received(self, upload: Upload, reason: str, length: float) -> tuple[Later, ServerState]:
        """As `Server.receive`, but the verdict may still be under way."""
        state = self._state
        if reason:
            _, state = self._server.refuse(state, upload, reason)
            return lambda: HostDecision(False, False, {}, reason), state
        assert isinstance(upload.update, Tensor)
        verdict, state = self._engine.judge(state, upload.update.detach())
        state.ledger.settle(upload.version)
        return lambda: verdict().with_score(NORM, length), state

    def _lend(self, state: ServerState) -> None:
        answers = int(self._answers[state.round])
        # A replayed step writes over the weights; whoever answers later needs these.
        weights = state.weights.clone() if answers and self._engine.waits else state.weights
        state.ledger.lend(state.round, weights, answers)

    def _update(self, client: int, version: int) -> Tensor:
        """What the client uploads: its gradient, or what the attack makes of it."""
        now, attackers = self.round, self._attackers
        base = self._state.ledger.look_up(version)
        assert base is not None, "the trace and the ledger disagree"
        self._engine.begin(now, base)
        poisoned = attackers.attacks(client, now)
        gradient = self._engine.train(poisoned)
        attackers.note(client, gradient)
        if not poisoned:
            return gradient
        trained = Arrival(self._jobs[now, 0], self._jobs[now, 1], gradient, base)
        further = self._engine.train_on
        return attackers.poison_update(trained, client, further, self._server, self._state)

    def _start_engine(self) -> None:
        seed, poison = self.experiment.seed, self._attackers.poison_batch
        parts = (self._clients, poison, self._server, self._jobs, seed)
        on_host = has_trait(self._server.defense, "on_host")
        recorded = self.device.type == "cuda" and not on_host
        self._engine = Replayed(*parts, self._state) if recorded else Eager(*parts)

    def _evaluate(self) -> EvaluationEvent:
        task, attack, labels = self.experiment.task, self.experiment.attack, self._test_labels
        metrics = dict(task.metrics(self._clients.test_outputs(self.weights), labels))
        if isinstance(attack, Backdoor):
            state = self._attackers.state
            outputs = self._clients.test_outputs(self.weights, lambda x: attack.stamp(state, x))
            others = labels != attack.target_class
            hit = outputs.argmax(dim=1)[others] == attack.target_class
            metrics["asr"] = float(hit.double().mean())
        return EvaluationEvent(self.round, finite_figures(metrics))

    @property
    def _test_labels(self) -> Tensor:
        return self._clients.data.test_labels

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that changes during a run, as named arrays."""
        named = {
            "round": torch.tensor(self.round),
            **name_state(self._state),
            **self._attackers.snapshot(),
        }
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Go on from a snapshot of the same experiment."""
        named = {name: torch.from_numpy(array.copy()) for name, array in snapshot.items()}
        try:
            now = int(named["round"])
            state = self._server.start(named["weights"].to(self.device))
            defense = rebuild(self._state.defense, "defense", named)
            self._attackers.restore(named)
            left = np.bincount(self.trace.version[now:], minlength=self.experiment.rounds + 1)
            for version in np.flatnonzero(left[: now + 1]):
                model = named[f"ledger.{version}"].to(self.device)
                state.ledger.lend(int(version), model, int(left[version]))
        except KeyError as error:
            raise RunError(f"the checkpoint lacks {error}: it is of another experiment") from error
        self._state = state._replace(round=now, defense=defense)
        self._inactivity = InactivityTracker(self.experiment.forget_after)
        for earlier in range(max(0, now - self.experiment.forget_after), now):
            self._inactivity.mark_active(int(self.trace.client[earlier]), earlier)
        self._start_engine()


def deal_samples(experiment: Experiment, data: Data) -> Shards:
    """Who holds what, and in which group each client is."""
    rng = numpy_generator(experiment.seed, "partition")
    labels, origin = data.train_labels.numpy(), data.train_origin
    dealt = experiment.partition.deal
    return dealt(labels, experiment.clients, rng, None if origin is None else origin.numpy())


def _holdings(data: Data, shards: Shards) -> list[list[int]] | None:
    """How many samples of each class every client holds; None for a regression."""
    if data.train_labels.is_floating_point():
        return None
    labels = data.train_labels.numpy()
    classes = int(labels.max()) + 1
    return [np.bincount(labels[rows], minlength=classes).tolist() for rows in shards.rows]


def choose_device(name: str) -> torch.device:
    """The device `auto`, `cpu` or `cuda` stands for here."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': torch sees no GPU here; use --device cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def seeded_model(experiment: Experiment, device: torch.device) -> torch.nn.Module:
    """The model before the first round."""
    # Modules draw their first weights from torch's global generator; it is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        cpu = torch.device("cpu")
        torch.manual_seed(torch_generator(experiment.seed, "model", 0, cpu).initial_seed())
        return experiment.task.model().to(device)


def finite_figures(figures: Mapping[str, float]) -> dict[str, float | None]:
    """What JSON can hold."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def arrival_event(
    verdict: HostDecision, now: int, client: int, malicious: bool, staleness: int
) -> ArrivalEvent:
    """What became of an upload, for the run folder."""
    accepted, stepped, scores, reason = verdict
    numbers = (now, client, malicious, staleness)
    return ArrivalEvent(*numbers, accepted, stepped, reason, finite_figures(scores))
