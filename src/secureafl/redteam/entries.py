"""Outcomes of searches as entries of the leaderboard: read, and refused where they do not belong.

The leaderboard is about one setting, the paper's, and about the defences as they are today.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError, RunError
from secureafl.experiment import from_mapping
from secureafl.redteam.outcome import DIVERGED
from secureafl.redteam.plan import Plan
from secureafl.runs.layout import read_json

_SEEDS = 3  # the fewest over which a result is a mean

# What is read of an outcome, and what it is.
_TEXTS = ("command", "metric", "worst.command", "worst.attack.kind")
_LISTS = ("origin.devices", "origin.versions", "origin.days")
_FIGURES = ("without_attack", "worst.held_out")


def read_entries(sources: Iterable[Path]) -> list[dict[str, Any]]:
    """Read outcomes (`redteam.json`, under any name) from files, and from folders of them."""
    files = [file for source in sources for file in _files(source)]
    return [_read(file) for file in files]


def _files(source: Path) -> Sequence[Path]:
    if not source.is_dir():
        return [source]
    found = sorted(source.glob("*.json"))
    if not found:
        raise RunError(f"{source}: no outcome of a search in it; give folders of JSON files")
    return found


def _read(file: Path) -> dict[str, Any]:
    outcome = read_json(file)
    for names, kind in ((_TEXTS, str), (_LISTS, list), (("plan",), dict)):
        for name in names:
            _require(isinstance(_inner(outcome, name), kind), file, name)
    plan = _plan(outcome["plan"], file)
    if plan.changes or not isinstance(plan.base.malicious, float):
        settings = ", ".join(plan.changes) or "malicious"
        raise RunError(f"{file}: not in the paper's setting (its {settings}); leave it out")
    if len(plan.held_out) < _SEEDS:
        raise RunError(f"{file}: has fewer than {_SEEDS} held-out seeds; search with more")
    for name in _FIGURES:
        _require(_are_figures(_inner(outcome, name), plan.held_out), file, name)
    return outcome


def _inner(outcome: Mapping[str, Any], name: str) -> Any:
    """The value under a dotted name; None if there is none."""
    found: Any = outcome
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _require(holds: bool, file: Path, name: str) -> None:
    if not holds:
        what = f"its '{name}' is missing, or not as a search writes it"
        raise RunError(f"{file}: is not the outcome of a search; {what}")


def _are_figures(found: Any, seeds: Sequence[int]) -> bool:
    """Whether there is a score for each held-out seed, and their mean."""
    by_seed, mean = _inner(found, "seeds"), _inner(found, "mean")
    if not isinstance(by_seed, Mapping) or set(by_seed) != set(map(str, seeds)):
        return False
    scores = [math.inf if score == DIVERGED else score for score in by_seed.values()]
    if not all(isinstance(score, int | float) and score >= 0 for score in scores):
        return False
    wanted = statistics.fmean(scores)
    return mean == DIVERGED if math.isinf(wanted) else _is_close(mean, wanted)


def _is_close(mean: Any, wanted: float) -> bool:
    return isinstance(mean, int | float) and math.isclose(mean, wanted, abs_tol=1e-9)


def _plan(mapping: Mapping[str, Any], file: Path) -> Plan:
    """The plan as it would be today: what a rule's settings were called before is not known."""
    try:
        return Plan(
            from_mapping(mapping["base"]),
            mapping["budget"],
            mapping["against"],
            tuple(mapping["held_out"]),
            mapping["search_seed"],
            mapping["blind"],
            tuple(mapping.get("start", ())),
        )
    except (ConfigError, KeyError, TypeError) as error:
        raise RunError(f"{file}: cannot be asked for today ({error}); search again") from error
