"""The server of a deployment, without a network: it loses no arrival that it has applied.

The round is `core.server`'s, as in the simulator. Order makes it durable: an upload is in the
journal, on the disk, before it is applied, and applied before any node is answered. After a kill,
the last checkpoint and the journal after it give the same state, and the same events, again.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from secureafl.core.decisions import HostDecision, to_host
from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event, ForgottenEvent
from secureafl.core.flat_model import flatten, layout
from secureafl.core.inactivity import InactivityTracker
from secureafl.core.ledger import Ledger
from secureafl.core.server import Server, ServerState, Upload, name_state, validate_norm
from secureafl.core.trees import name_tensors, rebuild
from secureafl.deployment.journal import Entry, Journal, Record, Removal, journals
from secureafl.deployment.messages import Answer
from secureafl.deployment.recovery import (
    BEFORE,
    FACTS,
    keep_checkpoint,
    make_facts,
    recover,
)
from secureafl.deployment.samples import InputFacts
from secureafl.deployment.secret import keep_secret
from secureafl.deployment.slots import SlotRegistry
from secureafl.experiment import Experiment, write_experiment
from secureafl.linalg.vectors import norm
from secureafl.runs.events import read_events
from secureafl.runs.folder import Checkpoint, RunFolder
from secureafl.runs.layout import EVENTS, PROVENANCE, read_json
from secureafl.runtime.clients import Clients
from secureafl.runtime.devices import ComputeContext, choose_device, on_device
from secureafl.runtime.events import arrival_event, evaluation_event
from secureafl.runtime.model_checks import check_model
from secureafl.runtime.records import (
    adopt_settings,
    describe_session,
    require_same,
    write_result,
)
from secureafl.runtime.root_data import root_data_for
from secureafl.runtime.setup import make_server, seeded_model

_SMALL_JOURNAL = 16 * 2**20  # bytes that are read and applied again in no time


class Coordinator:
    """A run in its folder: `create` makes the folder, `open` goes on wherever the run was left."""

    def __init__(self, experiment: Experiment) -> None:
        """Load the task."""
        self.experiment = experiment
        self._evaluated = experiment.evaluation.rounds(experiment.rounds)
        self._malicious: set[int] = set()
        self.step_seconds = self.step_cpu_seconds = 0.0  # the last step took; of this thread's time
        self.device = choose_device(experiment.device)
        self._compute = ComputeContext(experiment.threads, experiment.kernels, self.device)
        with self._compute:
            self._prepare()

    def _prepare(self) -> None:
        made = self.experiment
        self._data = made.task.load()
        model = seeded_model(made, self.device)
        data = on_device(self._data, self.device)
        self._test = Clients(made.task, data, model, made.scheduled_training)
        check_model(self._test)
        self.layout, self.inputs = layout(model), InputFacts.of(self._data)
        self._server = self._make_server()
        self._state = self._server.start(flatten(model))

    def _make_server(self) -> Server:
        made = self.experiment
        if made.client_weighting == "samples":
            said = "only clients could say how many they hold"
            raise ConfigError(f"client_weighting = 'samples': {said}")
        return make_server(made, self._test.model, root_data_for(made, self._test))

    @property
    def round(self) -> int:
        """Arrivals so far."""
        return self._state.round

    @property
    def finished(self) -> bool:
        """Whether all arrivals have come."""
        return self.round >= self.experiment.rounds

    @property
    def weights(self) -> Tensor:
        """The global model."""
        return self._state.weights

    def lend(self) -> int:
        """Note that one more upload on the current model is expected; returns its version."""
        self._state.ledger.lend(self.round, self.weights)
        return self.round

    def cancel(self, version: int) -> None:
        """Note that one upload on a model is not expected any longer."""
        self._state.ledger.settle(version)

    def receive(self, client: int, version: int, message: str, answer: Answer) -> list[Event] | str:
        """Apply an answer, which is a round and on disk when this returns.

        Or the reason why the defence must not see it. That is no round, changes nothing and is
        not written down: what costs its sender nothing must neither use up the run nor fill the
        disk.
        """
        update = self._update(answer, version)
        reason = self._validate(client, version, update)
        if reason:
            return reason
        facts = (self.round, client, version, message, bool(answer.attack), update)
        entry = Entry(*facts, slots=self.slots.lines)
        self._journal.append(entry)
        with self._compute:
            events = self._apply(entry)
        self.folder.append(events)
        self.folder.flush()
        if self._journal.size > max(_SMALL_JOURNAL, self._state_bytes()):
            self.save()
        return events

    def remove(self, node: int) -> list[Event]:
        """Forget the client of a node that was put out; its slot is free when this returns."""
        client = self.slots.slot(node)
        if client is None or self.slots.is_released(client):
            return []
        removal = Removal(self.round, client, node)
        self._journal.append(removal)
        with self._compute:
            events = self._apply_removal(removal)
        self.folder.append(events)
        self.folder.flush()
        return events

    def _apply_removal(self, removal: Removal) -> list[Event]:
        self._state = self._server.forget(self._state, removal.client)
        self._inactivity.drop(removal.client)
        self.slots.remove(removal.node)
        return [ForgottenEvent(self.round, removal.client)]

    def _update(self, answer: Answer, version: int) -> np.ndarray:
        """What the server steps against: as sent, or what makes a step end at the model sent."""
        base = self._state.ledger.look_up(version)
        if not answer.trained or base is None:
            return answer.vector
        way = base.cpu().numpy().astype(np.float64) - answer.vector
        with np.errstate(over="ignore"):  # too long for float32: refused
            return (way / self._server.learning_rate).astype(np.float32)

    def _validate(self, client: int, version: int, update: np.ndarray) -> str:
        """What the server's round would refuse it for; empty if it would not."""
        vector, base = torch.from_numpy(update).to(self.device), self._state.ledger.look_up(version)
        reason = self._server.validate_form(self._state, Upload(client, version, vector), base)
        with self._compute:
            return reason or validate_norm(float(norm(vector)), vector)

    def _apply(self, entry: Entry) -> list[Event]:
        """One round; the same entry on the same state gives the same."""
        now = self.round
        if entry.round != now:
            raise RunError(f"{self.folder.path}: the journal's round {entry.round} is not {now}")
        events: list[Event] = [self._evaluate()] if now == 0 else []
        decision, state = self._decide(entry)
        self._malicious |= {entry.client} if entry.malicious else set()
        numbers = (now, entry.client, entry.malicious, now - entry.version)
        events.append(arrival_event(decision, *numbers))
        self._mark_active(entry.client, now)
        for client in self._inactivity.due(state.round):
            state = self._server.forget(state, client)
            events.append(ForgottenEvent(state.round, client))
            self.slots.release(client, state.round)
        self._state: ServerState = state
        if self.round in self._evaluated:
            events.append(self._evaluate())
        return events

    def _decide(self, entry: Entry) -> tuple[HostDecision, ServerState]:
        """The server's round, timed."""
        update = torch.from_numpy(entry.update).to(self.device)
        began, busy = time.perf_counter(), time.thread_time()
        upload = Upload(entry.client, entry.version, update)
        decision, state = self._server.receive(self._state, upload)
        host = to_host(decision)
        self.step_seconds = time.perf_counter() - began
        self.step_cpu_seconds = time.thread_time() - busy
        return host, state

    def _mark_active(self, client: int, now: int) -> None:
        self._inactivity.mark_active(client, now)
        self.slots.mark_active(client, now)

    def _evaluate(self) -> EvaluationEvent:
        return evaluation_event(self.round, self.weights, self._test)

    # The folder.

    def create(self, path: Path) -> None:
        """Make the folder of a new run."""
        made, data = self.experiment, self._data
        provenance = {
            "seed": made.seed,
            "data": data.source,
            "data_fingerprint": data.fingerprint,
            "sessions": [],
        }
        RunFolder.create(path, write_experiment(made), provenance, deployed=True).close()

    def open(self, path: Path, accept_loss: bool = False) -> None:
        """Go on from what the folder holds: its checkpoint, with the journal after it applied.

        If rounds that were applied cannot be read any more, only `accept_loss` goes on.
        """
        require_same(self.experiment, path)
        self.folder = RunFolder(path, deployed=True)
        try:
            self._go_on(accept_loss)
        except Exception:
            self.folder.close()
            raise

    def _go_on(self, accept_loss: bool) -> None:
        made, path = self.experiment, self.folder.path
        if self.folder.finished:
            raise RunError(f"{path}: already finished; see it with 'secureafl report {path}'")
        if read_json(path / PROVENANCE).get("data_fingerprint") != self._data.fingerprint:
            raise RunError(f"{path}: was begun on other data than {self._data.source}")
        self._before, self._since = 0.0, time.monotonic()
        found = recover(self.folder, accept_loss)
        self.slots = SlotRegistry(path, made.clients, made.forget_after)
        self._inactivity = InactivityTracker(made.forget_after)
        self.notes = found.notes  # what was damaged and could be made up for
        self.folder.rewind(found.events_bytes)
        self._start_defense(begun=bool(found.checkpoint or found.records))
        lent = self._restore(found.checkpoint) if found.checkpoint else {0: self.weights}
        self._saved = self.round
        added = adopt_settings(self.folder, made)
        self.folder.add_session(describe_session(made, self.device, self.round, added))
        self._journal = Journal(path, found.journal, found.journal_records)
        with self._compute:
            self._replay(found.records, lent)
        self.folder.flush()

    def _start_defense(self, begun: bool) -> None:
        """The state before the first arrival, with what the defence draws for this run."""
        self._server = self._server._replace(seed=keep_secret(self.folder.path, begun))
        with self._compute:
            self._state = self._server.start(self.weights)

    def _restore(self, checkpoint: Checkpoint) -> dict[int, Tensor]:
        """The state of a checkpoint; returns the models that were lent then, by version."""
        named = {name: torch.from_numpy(array) for name, array in checkpoint.tensors.items()}
        weights = named["weights"].to(self.device)
        try:
            defense = rebuild(self._state.defense, "defense", named)
            optimizer = rebuild(self._state.optimizer, "optimizer", named)
        except KeyError as error:
            begun = read_json(self.folder.path / PROVENANCE)["sessions"][0].get("secureafl")
            lacks = f"its checkpoint lacks {error}, which this version's defence keeps"
            said = f"{lacks}; finish the run with the version that began it ({begun})"
            raise RunError(f"{self.folder.path}: {said}") from None
        self._state = ServerState(checkpoint.round, weights, defense, Ledger(), optimizer)
        self._before = checkpoint.seconds
        for event in read_events(self.folder.path):
            if isinstance(event, ArrivalEvent):
                self._mark_active(event.client, event.round)
                self._malicious |= {event.client} if event.malicious else set()
            elif isinstance(event, ForgottenEvent):
                self.slots.release(event.client, event.round)
                self._inactivity.drop(event.client)
        self._inactivity.due(checkpoint.round)  # the events name these already
        prefix = "ledger."
        lent = {n: t.to(self.device) for n, t in named.items() if n.startswith(prefix)}
        versions = {int(name.removeprefix(prefix)): model for name, model in lent.items()}
        return {**versions, checkpoint.round: weights}

    def _replay(self, records: list[Record], lent: dict[int, Tensor]) -> None:
        """Apply what the journal holds; requests without an answer in it are no longer open."""
        answers = Counter(record.version for record in records if isinstance(record, Entry))
        for version, model in lent.items():
            self._state.ledger.lend(version, model, answers[version])
        for record in records:
            if isinstance(record, Removal):
                self.folder.append(self._apply_removal(record))
                continue
            self.folder.append(self._apply(record))
            self._state.ledger.lend(self.round, self.weights, answers[self.round])

    def save(self) -> None:
        """A checkpoint, and a journal that begins with it; those of the one before it stay."""
        path, needed = self.folder.path, self._saved
        named = name_state(self._state).items()
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in named}
        self.folder.flush()
        size = (path / EVENTS).stat().st_size
        # Clients that were put out since the last checkpoint, if nothing has arrived since.
        held = self._journal.records if self._journal.number == self.round else 0
        numbers = (self.round, held, self.slots.lines, size)
        arrays[FACTS] = make_facts(*numbers, self.folder.checksum_events(size))
        keep_checkpoint(path)
        self.folder.save_checkpoint(arrays, self.round, self._seconds())
        self._saved = self.round
        self._journal.close()
        self._journal = Journal(path, self.round, held)
        for number, old in journals(path).items():
            if number < needed:
                old.unlink()

    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes, about."""
        return sum(tensor.nbytes for tensor in name_state(self._state).values())

    def _state_bytes(self) -> int:
        kept = (self._state.defense, self._state.optimizer)
        return sum(t.nbytes for t in name_tensors(kept, "").values())

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._since

    def close(self) -> None:
        """Leave the folder: with its result if the run is finished, else with a checkpoint."""
        if self.finished:
            facts = {
                "privacy": None,  # what clients do for theirs, the server cannot know
                "data": self._data.source,
                "malicious_clients": sorted(self._malicious),
            }
            parts = (self.experiment, self._test, self.weights)
            write_result(self.folder, *parts, facts, self._seconds())
            self._journal.close()
            for path in (self.folder.path / BEFORE, *journals(self.folder.path).values()):
                path.unlink(missing_ok=True)
        else:
            self.save()
            self._journal.close()
        self.folder.close()
