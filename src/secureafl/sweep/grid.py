"""Cells of a comparison: one experiment with its defence and attack exchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from secureafl.attacks import ATTACKS
from secureafl.core.errors import ConfigError
from secureafl.defenses import DEFENSES
from secureafl.experiment import Experiment, from_mapping, with_settings
from secureafl.settings import find_class, short_name

_TABLES: dict[str, Any] = {"defense": DEFENSES, "attack": ATTACKS}


def cross(
    values: Mapping[str, Any],
    defenses: Sequence[str],
    attacks: Sequence[str],
    changes: Mapping[str, Any],
) -> dict[str, Experiment]:
    """One experiment per defence and attack; without a list, the file's own is used.

    A kind that the file names too keeps the file's settings for it. Of `changes`, settings of a
    defence or an attack go to the cells whose defence or attack has them.
    """
    cells: dict[str, Experiment] = {}
    used: set[str] = set()
    for attack in attacks or [""]:
        for defense in defenses or [""]:
            mapping = _exchanged(_exchanged(values, "defense", defense), "attack", attack)
            fitting = {key: v for key, v in changes.items() if _fits(mapping, key)}
            used |= set(fitting)
            name = "-".join(part.replace(":", ".") for part in (defense, attack) if part) or "run"
            if name in cells:
                raise ConfigError(f"'{name}' is named twice")
            cells[name] = from_mapping(with_settings(mapping, fitting))
    for key in changes:
        if key not in used:
            raise ConfigError(f"unknown setting '{key}': none of the cells has it")
    return cells


def _exchanged(values: Mapping[str, Any], part: str, kind: str) -> Mapping[str, Any]:
    return values if kind in ("", _kind(values, part)) else {**values, part: kind}


def _fits(values: Mapping[str, Any], key: str) -> bool:
    part, _, setting = key.partition(".")
    kind = _kind(values, part) if part in _TABLES else None
    if not setting or not isinstance(kind, str):
        return True  # not a matter of the cell: checked with the experiment
    fields = dataclasses.fields(find_class(kind, _TABLES[part], part))
    return setting.partition(".")[0] in {field.name for field in fields}


def _kind(values: Mapping[str, Any], part: str) -> Any:
    default = short_name(getattr(Experiment(), part))
    value = values.get(part, default)
    return value.get("kind", default) if isinstance(value, Mapping) else value
