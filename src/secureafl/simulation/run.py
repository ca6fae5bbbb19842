"""A simulation into a run folder: events, checkpoints, result; and on from where it was killed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from secureafl.core.errors import RunError
from secureafl.core.events import Event
from secureafl.experiment import Experiment, write_experiment
from secureafl.runs.folder import RunFolder, refuse_taken
from secureafl.runs.layout import EXPERIMENT, PROVENANCE, read_json
from secureafl.runtime.records import (
    adopt_settings,
    describe_session,
    require_same,
    stored_experiment,
    write_result,
)
from secureafl.simulation.simulator import Simulation

_FLUSH_SECONDS = 1.0
_MOST_FOR_CHECKPOINTS = 0.05  # of the time a run computes; where several share a GPU, of its own


class Recording:
    """A run that leaves everything in its folder.

    Iterating advances it and yields its events. Leaving the loop early saves a checkpoint; a kill
    at any moment costs the time since the last one, and nothing else.
    """

    def __init__(
        self, simulation: Simulation, folder: RunFolder, seconds: float, checkpoint_seconds: float
    ) -> None:
        """Use `start_run` or `resume_run`."""
        self.simulation, self.folder = simulation, folder
        self._before, self._since = seconds, time.monotonic()
        self._checkpoint_seconds = checkpoint_seconds
        self._computed = self._enough = 0.0  # seconds since the last checkpoint, and wanted

    @property
    def seconds(self) -> float:
        """Time spent on the run, in all sessions."""
        return self._before + time.monotonic() - self._since

    def __iter__(self) -> Iterator[Event]:
        """Advance to the end."""
        turns = self.turns()
        try:
            for events in turns:
                yield from events
        finally:
            turns.close()

    def turns(self) -> Generator[list[Event], None, None]:
        """Advance to the end in turns, some of them without events (`Simulation.turns`)."""
        turns = self._timed(self.simulation.turns())
        self._saved = self._flushed = time.monotonic()
        try:
            for events in turns:
                try:
                    self._note(events)
                    yield events
                except GeneratorExit:
                    # The consumer left, perhaps while a GPU was at work: let that round end.
                    if not events:
                        self.folder.append(next(events for events in turns if events))
                    self._save()
                    raise
            self._finish()
        finally:
            self.folder.close()

    def _timed(self, turns: Iterator[list[Event]]) -> Iterator[list[Event]]:
        while True:
            start = time.monotonic()
            events = next(turns, None)
            self._computed += time.monotonic() - start
            if events is None:
                return
            yield events

    def _note(self, events: list[Event]) -> None:
        """Write events down and, from time to time, a checkpoint."""
        if not events:
            return
        self.folder.append(events)
        now = time.monotonic()
        if now - self._saved >= self._checkpoint_seconds and self._computed >= self._enough:
            self._save()
            self._saved = self._flushed = time.monotonic()
            self._computed, self._enough = 0.0, (self._saved - now) / _MOST_FOR_CHECKPOINTS
        elif now - self._flushed >= _FLUSH_SECONDS:
            self.folder.flush()
            self._flushed = now

    def _save(self) -> None:
        snapshot = self.simulation.snapshot()
        self.folder.save_checkpoint(snapshot, self.simulation.round, self.seconds)

    def _finish(self) -> None:
        run = self.simulation
        facts = {
            "privacy": run.privacy,
            "data": run.data_source,
            "malicious_clients": np.flatnonzero(run.malicious).tolist(),
        }
        write_result(self.folder, run.experiment, run.clients, run.weights, facts, self.seconds)


def start_run(experiment: Experiment, path: Path, checkpoint_seconds: float) -> Recording:
    """Begin a run in a new folder."""
    refuse_taken(path)  # before the data is loaded
    simulation = Simulation(experiment)
    provenance = {
        "seed": experiment.seed,
        "data": simulation.data_source,
        "data_fingerprint": simulation.data_fingerprint,
        "sessions": [describe_session(experiment, simulation.device, simulation.round)],
    }
    settings = write_experiment(experiment)
    folder = RunFolder.create(path, settings, provenance, simulation.holdings)
    return Recording(simulation, folder, 0.0, checkpoint_seconds)


def open_run(experiment: Experiment, path: Path, checkpoint_seconds: float) -> Recording:
    """Go on with the run in `path` if it is this experiment's; begin it if there is none."""
    if not (path / EXPERIMENT).is_file():
        return start_run(experiment, path, checkpoint_seconds)
    require_same(experiment, path)
    return _go_on(experiment, path, checkpoint_seconds)


def resume_run(path: Path, checkpoint_seconds: float) -> Recording:
    """Go on with a run that was interrupted; from the start if it left no checkpoint."""
    return _go_on(None, path, checkpoint_seconds)


def _go_on(experiment: Experiment | None, path: Path, checkpoint_seconds: float) -> Recording:
    """Go on with a run, whose folder knows the experiment if it is not given."""
    folder = RunFolder(path)
    try:
        if folder.finished:
            raise RunError(f"{path}: already finished; see it with 'secureafl report {path}'")
        made = experiment or stored_experiment(path)
        return _restored(made, folder, checkpoint_seconds)
    except BaseException:
        folder.close()
        raise


def _restored(experiment: Experiment, folder: RunFolder, checkpoint_seconds: float) -> Recording:
    checkpoint, path = folder.load_checkpoint(), folder.path
    simulation = Simulation(experiment)
    expected = read_json(path / PROVENANCE).get("data_fingerprint")
    if simulation.data_fingerprint != expected:
        raise RunError(f"{path}: was begun on other data than {simulation.data_source}")
    if checkpoint:
        simulation.restore(checkpoint.tensors)
        folder.require_events(checkpoint)
    folder.rewind(checkpoint.events_bytes if checkpoint else 0)
    session = (experiment, simulation.device, simulation.round, adopt_settings(folder, experiment))
    folder.add_session(describe_session(*session))
    return Recording(
        simulation, folder, checkpoint.seconds if checkpoint else 0, checkpoint_seconds
    )
