"""Cells of a comparison: one experiment with its defence and attack exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.experiment import Experiment, from_mapping, with_settings


def cross(
    values: Mapping[str, Any], defenses: Sequence[str], attacks: Sequence[str]
) -> dict[str, Experiment]:
    """One experiment per defence and attack; without a list, the file's own is used.

    A kind that the file names too keeps the file's settings for it.
    """
    cells: dict[str, Experiment] = {}
    for attack in attacks or [""]:
        for defense in defenses or [""]:
            changes = {"defense": defense, "attack": attack}
            mapping = dict(values)
            for key, kind in changes.items():
                if kind and kind != _kind(values.get(key)):
                    mapping = with_settings(mapping, {key: kind})
            name = "-".join(part.replace(":", ".") for part in (defense, attack) if part)
            if name in cells:
                raise ConfigError(f"'{name}' is named twice")
            cells[name or "run"] = from_mapping(mapping)
    return cells


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, Mapping) else value
