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
from secureafl.redteam.folder import OUTCOME
from secureafl.redteam.plan import Against, Plan
from secureafl.redteam.space import complete, find_space
from secureafl.runs.layout import read_json
from secureafl.runtime.loading import shared_data
from secureafl.toml import parse_value

Source = str | Path | Mapping[str, Any]

_REMEDY = "give a table as '{ kind = \"alie\", z = 1.5 }', or outcomes: a redteam.json, a folder"


def with_start(plan: Plan, sources: Iterable[Source]) -> Plan:
    """The plan of a search that tries what these name before all else, each attack once.

    A table is an attack, a file the outcome of a search, and so is the folder of a search. Of any
    other folder it is the outcomes of searches against the same defence, with the same goal.
    """
    (started,) = with_starts([plan], sources)
    return started


def with_starts(plans: Sequence[Plan], sources: Iterable[Source]) -> list[Plan]:
    """The same for several; a search for backdoors does without attacks that others may try."""
    given = list(sources)
    if not given:
        return list(plans)
    with shared_data():
        spaces = [find_space(plan.base.task, plan.against == "asr") for plan in plans]
    everywhere = [kind for space in spaces for kind in space]
    wanted = [(to_mapping(plan.base)["defense"]["kind"], plan.against) for plan in plans]
    found = [[_named(source, its) for source in given] for its in wanted]
    for place, source in enumerate(given):
        if not any(its[place] for its in found):
            asked = ", ".join(dict.fromkeys(f"{kind} against {goal}" for kind, goal in wanted))
            raise _no_source(source, f"no outcome of a search on {asked}")
    started = []
    for plan, space, its in zip(plans, spaces, found, strict=True):
        named = [attack for attacks in its for attack in attacks]
        others = [kind for kind in everywhere if kind not in space]
        made = [complete(attack, space) for attack in named if attack.get("kind") not in others]
        start = tuple(one for place, one in enumerate(made) if one not in made[:place])
        started.append(dataclasses.replace(plan, start=start) if start else plan)
    return started


def _named(source: Source, wanted: tuple[str, Against]) -> Sequence[Mapping[str, Any]]:
    if isinstance(source, str) and source.lstrip().startswith("{"):
        source = parse_value(source)
    if isinstance(source, Mapping):
        return [source]
    path = Path(source)
    try:
        file = path / OUTCOME if (path / OUTCOME).is_file() else path
        if file.is_file():
            return [_worst(file, read_json(file))]
        files = sorted(path.glob("*.json"))
    except OSError as error:  # such as a table without its brackets, too long for a name
        raise _no_source(source, str(error.strerror).lower()) from error
    if not files:
        what = "a folder without outcomes" if path.is_dir() else "no table, file or folder"
        raise _no_source(source, what)
    outcomes = {file: read_json(file) for file in files}
    return [_worst(file, one) for file, one in outcomes.items() if _goal(file, one) == wanted]


def _no_source(source: Source, what: str) -> ConfigError:
    return ConfigError(f"start-from {str(source)!r}: {what}; {_REMEDY}")


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
