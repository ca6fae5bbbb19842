"""Attacks that a search is told to begin with: tables, or what earlier searches found.

An attack that is the worst with some share of malicious clients is a good guess for another share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError, RunError
from secureafl.experiment import to_mapping
from secureafl.redteam.plan import Against, Plan
from secureafl.redteam.space import complete, find_space
from secureafl.runs.layout import read_json
from secureafl.toml import parse_value

Source = str | Path | Mapping[str, Any]

_REMEDY = "give a table as '{ kind = \"alie\", z = 1.5 }', or outcomes: a redteam.json, a folder"


def with_start(plan: Plan, sources: Iterable[Source]) -> Plan:
    """The plan of a search that tries what these name before all else, each attack once.

    A table is an attack, a file the outcome of a search. Of a folder it is the outcomes of searches
    against the same defence, with the same goal.
    """
    wanted = to_mapping(plan.base)["defense"]["kind"], plan.against
    named = [attack for source in sources for attack in _named(source, wanted)]
    if not named:
        return plan
    space = find_space(plan.base.task, plan.against == "asr")
    made = [complete(attack, space) for attack in named]
    start = tuple(one for place, one in enumerate(made) if one not in made[:place])
    return dataclasses.replace(plan, start=start)


def _named(source: Source, wanted: tuple[str, Against]) -> Sequence[Mapping[str, Any]]:
    if isinstance(source, str) and source.lstrip().startswith("{"):
        source = parse_value(source)
    if isinstance(source, Mapping):
        return [source]
    path = Path(source)
    if path.is_file():
        return [_worst(path, read_json(path))]
    files = sorted(path.glob("*.json"))
    if not files:
        what = "a folder without outcomes" if path.is_dir() else "no table, file or folder"
        raise ConfigError(f"start-from {str(source)!r}: {what}; {_REMEDY}")
    outcomes = {file: read_json(file) for file in files}
    return [_worst(file, one) for file, one in outcomes.items() if _goal(file, one) == wanted]


def _worst(file: Path, outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    _goal(file, outcome)
    return outcome["worst"]["attack"]


def _goal(file: Path, outcome: Any) -> tuple[str, Against]:
    """Which defence was attacked, and what was to become large."""
    try:
        attacked = outcome["plan"]["base"]["defense"]["kind"], outcome["plan"]["against"]
        if isinstance(outcome["worst"]["attack"]["kind"], str):
            return attacked
    except (KeyError, TypeError):
        pass
    raise RunError(f"{file}: is not the outcome of a search; {_REMEDY}")
