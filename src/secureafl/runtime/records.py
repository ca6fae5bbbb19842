"""What a run leaves in its folder beside events and checkpoints: settings, sessions, result."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from secureafl import __version__
from secureafl.core.errors import ConfigError, RunError, SecureAflError
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.runs.events import read_events
from secureafl.runs.folder import RunFolder
from secureafl.runs.layout import EXPERIMENT, PROVENANCE, RESULT, read_json
from secureafl.runs.summary import summarise
from secureafl.runtime.trained_model import model_file
from secureafl.settings import refuse_old_names, short_name
from secureafl.tasks.arrays import refuse_arrays
from secureafl.toml import differences, read_toml, write_toml

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.runtime.clients import Clients


def require_same(experiment: Experiment, path: Path) -> None:
    """Raise unless the run in `path` is of this experiment."""
    stored, wanted = _stored_settings(path), to_mapping(experiment)
    if next(_missing(wanted, stored), None):
        _refuse_missing(wanted, stored, path)
        stored = to_mapping(from_mapping(stored))
    if wanted["device"].startswith("cuda"):
        stored["threads"] = wanted["threads"]  # on a GPU they change no bit
    if stored != wanted:
        what = f"holds a run with other settings ({differences(stored, wanted)})"
        raise RunError(f"{path}: {what}; choose another folder (out)")


def is_of(experiment: Experiment, path: Path) -> bool:
    """Whether the run in `path` is of this experiment."""
    with contextlib.suppress(SecureAflError):
        require_same(experiment, path)
        return True
    return False


def stored_experiment(path: Path) -> Experiment:
    """The experiment of a run; a finished one that lacks one of today's settings is refused.

    An unfinished run has today's defaults for what its version did not know.
    """
    stored = _stored_settings(path)
    refuse_arrays(stored, path, "call secureafl.fit again, as before and with out=RUN")
    try:
        experiment = from_mapping(stored)
    except ConfigError as error:
        raise RunError(f"{path / EXPERIMENT}: {error}") from None
    _refuse_missing(to_mapping(experiment), stored, path)
    return experiment


def _stored_settings(path: Path) -> dict[str, Any]:
    stored = read_toml(path / EXPERIMENT)
    refuse_old_names(stored, path)
    return stored


def _refuse_missing(wanted: Mapping[str, Any], stored: Mapping[str, Any], path: Path) -> None:
    missing = next(_missing(wanted, stored), None)
    if missing and ((path / RESULT).is_file() or _begun_by(path) in (None, __version__)):
        # What is missing would get today's default, and the run be taken for another.
        when = f"was made by a version that did not have the setting '{missing[0]}'"
        raise RunError(f"{path}: {when}; choose another folder (out)")


def _begun_by(path: Path) -> str | None:
    """The version that began a run."""
    sessions = read_json(path / PROVENANCE).get("sessions") or [{}]
    return sessions[0].get("secureafl")


def adopt_settings(folder: RunFolder, experiment: Experiment) -> dict[str, Any]:
    """Write down, for an unfinished run, the settings its version did not have; returns them.

    It goes on with their defaults. Without this, it could not be told later what they were.
    """
    wanted = to_mapping(experiment)
    added = dict(_missing(wanted, read_toml(folder.path / EXPERIMENT)))
    if added:
        folder.replace_experiment(write_toml(wanted))
    return added


def _missing(wanted: Mapping, stored: Mapping, above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings that one has and the other has not, with their values."""
    for name, value in wanted.items():
        if name not in stored:
            yield above + name, value
        elif _is_same_kind(value, stored[name]):
            yield from _missing(value, stored[name], f"{above}{name}.")


def _is_same_kind(value: Any, stored: Any) -> bool:
    """Whether these are two tables of settings, and if of plug-ins, of the same one."""
    tables = isinstance(value, Mapping) and isinstance(stored, Mapping)
    return tables and value.get("kind") == stored.get("kind")


def write_result(
    folder: RunFolder,
    experiment: Experiment,
    clients: Clients,
    weights: Tensor,
    facts: Mapping[str, Any],
    seconds: float,
) -> None:
    """Finish a run: its final model, what its events come to, and what only its driver knows."""
    folder.save_model(*model_file(clients, weights))
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


def describe_session(
    experiment: Experiment,
    device: torch.device,
    from_round: int,
    added: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the figures of this session depend on; `added` are settings it was the first to have."""
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
        "threads": experiment.threads or torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "precision": experiment.training.precision if on_gpu else "float32",
        **({"settings_added": dict(added)} if added else {}),
    }


def _commit() -> str | None:
    """The checkout's commit, marked if files differ from it.

    Elsewhere, as in a container with a copy of the code, what SECUREAFL_COMMIT says, if anything.
    """
    here, told = Path(__file__).parent, os.environ.get("SECUREAFL_COMMIT") or None
    if not any((parent / ".git").exists() for parent in here.parents[2:4]):
        return told
    try:
        asked = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return told


def _peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
