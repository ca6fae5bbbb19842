"""A simulation into a run folder: events, checkpoints, result; and on from where it was killed."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secureafl import __version__
from secureafl.core.errors import RunError
from secureafl.core.events import Event
from secureafl.experiment import (
    Experiment,
    from_mapping,
    to_mapping,
    write_experiment,
)
from secureafl.runs.folder import (
    EXPERIMENT,
    PROVENANCE,
    RunFolder,
    read_events,
    read_json,
    refuse_taken,
    summarise,
)
from secureafl.settings import refuse_old_names, short_name
from secureafl.simulation.simulator import Simulation
from secureafl.toml import read_toml

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
        write_result(self.folder, run.experiment, run.weights, facts, self.seconds)


def write_result(
    folder: RunFolder,
    experiment: Experiment,
    weights: Tensor,
    facts: Mapping[str, Any],
    seconds: float,
) -> None:
    """Finish a run: its final weights, what its events come to, and what only its driver knows."""
    folder.save_model({"weights": weights.cpu().numpy()})
    folder.flush()
    late = experiment.evaluation.late_rounds(experiment.rounds)
    folder.finish(
        {
            "task": short_name(experiment.task),
            "defense": short_name(experiment.defense),
            "attack": short_name(experiment.attack),
            "seed": experiment.seed,
            "rounds": experiment.rounds,
            **summarise(read_events(folder.path), late),
            **facts,
            "seconds": round(seconds, 3),
            "rounds_per_second": round(experiment.rounds / seconds, 3),
            "peak_memory_bytes": _peak_memory(),
        }
    )


def start_run(experiment: Experiment, path: Path, checkpoint_seconds: float) -> Recording:
    """Begin a run in a new folder."""
    refuse_taken(path)  # before the data is loaded
    simulation = Simulation(experiment)
    provenance = {
        "seed": experiment.seed,
        "data": simulation.data_source,
        "data_fingerprint": simulation.data_fingerprint,
        "sessions": [describe_session(simulation.device, simulation.round)],
    }
    settings = write_experiment(experiment)
    folder = RunFolder.create(path, settings, provenance, simulation.holdings)
    return Recording(simulation, folder, 0.0, checkpoint_seconds)


def open_run(experiment: Experiment, path: Path, checkpoint_seconds: float) -> Recording:
    """Go on with the run in `path` if it is this experiment's; begin it if there is none."""
    if not (path / EXPERIMENT).is_file():
        return start_run(experiment, path, checkpoint_seconds)
    require_same(experiment, path)
    return resume_run(path, checkpoint_seconds)


def require_same(experiment: Experiment, path: Path) -> None:
    """Raise unless the run in `path` is of this experiment."""
    if stored_experiment(path) != experiment:
        raise RunError(f"{path}: holds a run with other settings; choose another --out")


def stored_experiment(path: Path) -> Experiment:
    """The experiment of a run; a run that lacks one of today's settings is refused."""
    stored = read_toml(path / EXPERIMENT)
    refuse_old_names(stored, path)
    experiment = from_mapping(stored)
    # What is missing would get today's default, and the run be taken for another.
    missing = next(_missing(to_mapping(experiment), stored), "")
    if missing:
        when = f"was made by a version that did not have the setting '{missing}'"
        raise RunError(f"{path}: {when}; choose another --out")
    return experiment


def _missing(wanted: Mapping, stored: Mapping, above: str = "") -> Iterator[str]:
    """Settings that one has and the other has not."""
    for name, value in wanted.items():
        if name not in stored:
            yield above + name
        elif isinstance(value, Mapping) and isinstance(stored[name], Mapping):
            yield from _missing(value, stored[name], f"{above}{name}.")


def resume_run(path: Path, checkpoint_seconds: float) -> Recording:
    """Go on with a run that was interrupted; from the start if it left no checkpoint."""
    folder = RunFolder(path)
    if folder.finished:
        raise RunError(f"{path}: already finished; see it with 'secureafl report {path}'")
    checkpoint = folder.load_checkpoint()
    simulation = Simulation(stored_experiment(path))
    expected = read_json(path / PROVENANCE).get("data_fingerprint")
    if simulation.data_fingerprint != expected:
        raise RunError(f"{path}: was begun on other data than {simulation.data_source}")
    if checkpoint:
        simulation.restore(checkpoint.tensors)
    folder.rewind(checkpoint.events_bytes if checkpoint else 0)
    folder.add_session(describe_session(simulation.device, simulation.round))
    return Recording(
        simulation, folder, checkpoint.seconds if checkpoint else 0, checkpoint_seconds
    )


def describe_session(device: torch.device, from_round: int) -> dict[str, Any]:
    """What the figures of this session depend on."""
    on_gpu = device.type == "cuda"
    return {
        "from_round": from_round,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "secureafl": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }


def _commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None for an installed package."""
    here = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in here.parents[2:4]):
        return None
    try:
        asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
