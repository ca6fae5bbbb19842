"""The files of a run folder: the only place a run leaves anything, and all that is read of it.

    experiment.toml         every setting
    provenance.json         versions, commit, hardware, seed; one entry per session
    holdings.json           how many samples of each class every client holds, if there are classes
    events.jsonl            append-only, one line per arrival, evaluation and forgotten client
    pace.jsonl              append-only, about one line a second: which round it was when
    checkpoint.safetensors  while the run is unfinished
    model.safetensors       final model: its state_dict, and how its inputs are standardised
    result.json             written last: its presence means the run is finished
    server/                 of a deployment only: keys, log, problem, what Flower stores
    tensorboard/, wandb/    where a tracker was asked for; nothing here reads them

All but the two append-only files appear whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from secureafl.core.errors import NoRunError, RunError

EXPERIMENT, PROVENANCE, EVENTS = "experiment.toml", "provenance.json", "events.jsonl"
HOLDINGS, PACE = "holdings.json", "pace.jsonl"
CHECKPOINT, MODEL, RESULT = "checkpoint.safetensors", "model.safetensors", "result.json"
SERVER = "server"
PROBLEM = f"{SERVER}/problem"  # what a deployment says is wrong with it; blank: nothing


def is_run(path: Path) -> bool:
    """Whether this is a run folder: it has the settings of a run, which are written first."""
    return (path / EXPERIMENT).is_file()


def require_run(path: Path) -> None:
    """Raise unless this is a run folder."""
    remedy = "give a folder that 'secureafl run' has made"
    try:
        if is_run(path):
            return
        what = f"not a run folder (no {EXPERIMENT})" if path.exists() else "no such folder"
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    raise NoRunError(f"{path}: {what}; {remedy}")


def is_deployed(path: Path) -> bool:
    """Whether a run is a deployment's; its folder says so from the first moment."""
    return (path / SERVER).is_dir()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a run folder."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        if "\\ud" in text.lower():  # half a character can be read, and not be written anywhere
            json.dumps(found, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise RunError(f"{path}: holds no JSON object")
    return found


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON as a run folder holds it: an undefined figure is null, because NaN is not JSON."""
    return json.dumps(value, indent=indent, allow_nan=False)
