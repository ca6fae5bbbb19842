"""The folder of a search.

    search.json     what was asked for, written first
    runs/           a run folder for every run
    trials.json     all attacks and their scores, and which parts mattered
    redteam.json    the worst attack and its score, written last; small enough to be kept for good
    worst.toml      the worst attack, as an experiment

What is in it decides what is left to do: a search that was killed goes on from its run folders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError
from secureafl.core.files import put_new_file
from secureafl.redteam.optimiser import import_optuna
from secureafl.redteam.plan import NO_ATTACK, Plan
from secureafl.redteam.space import Space
from secureafl.runs.layout import read_json, to_json
from secureafl.toml import differences

SEARCH, RUNS, TRIALS, OUTCOME = "search.json", "runs", "trials.json", "redteam.json"
WORST = "worst.toml"


def claim(plan: Plan, space: Space, out: Path) -> None:
    """Make the folder of this search; raise if it is that of another, or something else."""
    # As JSON gives it back: tuples are lists there. Another Optuna might propose other attacks.
    wanted = json.loads(
        to_json({**plan.to_mapping(), "space": space, "optuna": import_optuna().__version__})
    )
    stored = out / SEARCH
    try:
        if not stored.is_file():
            if out.exists() and any(not _half_written(path) for path in out.iterdir()):
                what = "is in use, and not by a search"
                raise RunError(f"{out}: {what}; choose another folder (out)")
            out.mkdir(parents=True, exist_ok=True)
            put_new_file(stored, to_json(wanted, indent=1).encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror})") from error
    # It is read in any case: another search may have been first.
    found = read_json(stored)
    kept = {key: value for key, value in found.items() if key in wanted}
    if kept != wanted:
        what = f"holds another search ({differences(kept, wanted)})"
        raise RunError(f"{out}: {what}; choose another folder (out)")


def _half_written(path: Path) -> bool:
    """Whether this is what a process left that was killed while it claimed the folder."""
    return path.name.startswith(f".{SEARCH}.")


def cell_name(attack: Mapping[str, Any], stage: str) -> str:
    """The name of a run: it follows from the attack, not from when that was proposed."""
    if attack == NO_ATTACK:
        return f"none-{stage}"
    digest = hashlib.sha256(json.dumps(attack, sort_keys=True).encode()).hexdigest()[:10]
    return f"{attack['kind']}-{digest}-{stage}"
