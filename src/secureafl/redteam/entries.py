"""Outcomes of searches as entries of the leaderboard: read, and refused where they do not belong.

The leaderboard is about one setting, the paper's, and about the defences as they are today.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError, RunError
from secureafl.experiment import from_mapping
from secureafl.redteam.plan import Plan
from secureafl.runs.layout import read_json

_KEYS = ("command", "metric", "without_attack", "worst", "origin", "plan")
_SEEDS = 3  # the fewest over which a result is a mean


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
    missing = [key for key in _KEYS if key not in outcome]
    if missing:
        raise RunError(f"{file}: is not the outcome of a search; it lacks '{missing[0]}'")
    plan = _plan(outcome["plan"], file)
    if plan.changes or not isinstance(plan.base.malicious, float):
        settings = ", ".join(plan.changes) or "malicious"
        raise RunError(f"{file}: not in the paper's setting (its {settings}); leave it out")
    if len(plan.held_out) < _SEEDS:
        raise RunError(f"{file}: has fewer than {_SEEDS} held-out seeds; search with more")
    return outcome


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
