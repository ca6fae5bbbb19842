"""Short labels of runs, made of only those settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# Settings that labels leave out; the attack and its settings are the scene.
_SHARED = ("seed", "threads", "device", "attack", "defense.", "task.kind")
_LONGEST = 60


class Labels(NamedTuple):
    """The label of one run among others."""

    variant: str  # the defence, and what else was set differently
    scene: str  # the attack, and on which task if there are several


def kind(experiment: Mapping[str, Any], part: str) -> str:
    """Return the kind of an experiment's defence, attack or task."""
    found = experiment.get(part, "unknown")
    return str(found.get("kind", "unknown") if isinstance(found, Mapping) else found)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return every setting under its dotted name, as text."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = as_text(value)
    return flat


def as_text(value: Any) -> str:
    """Return the value of a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def label_runs(experiments: Sequence[Mapping[str, Any]]) -> list[Labels]:
    """Return labels for runs that are shown together."""
    flat = [flatten(experiment) for experiment in experiments]
    common = [name for name in _varying(flat) if not name.startswith(_SHARED)]
    defenses, attacks, tasks = (
        [kind(experiment, part) for experiment in experiments]
        for part in ("defense", "attack", "task")
    )
    own_of, scene_of = _own("defense", defenses, flat), _own("attack", attacks, flat)
    variants = [
        (defense, _told(mine, [*own_of[defense], *common]))
        for defense, mine in zip(defenses, flat, strict=True)
    ]
    scenes = [
        ("no attack" if attack == "none" else attack, _told(mine, scene_of[attack]))
        for attack, mine in zip(attacks, flat, strict=True)
    ]
    where = [f" on {task}" if len(set(tasks)) > 1 else "" for task in tasks]
    return [
        Labels(variant, scene + task)
        for variant, scene, task in zip(_joined(variants), _joined(scenes), where, strict=True)
    ]


def _own(
    part: str, kinds: Sequence[str], flat: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """Return, by kind, the settings of a part (`attack.std`) that differ among its runs."""
    return {
        wanted: [
            name
            for name in _varying([f for k, f in zip(kinds, flat, strict=True) if k == wanted])
            if name.startswith(part)
        ]
        for wanted in set(kinds)
    }


def _varying(flat: Sequence[Mapping[str, str]]) -> list[str]:
    names: Iterable[str] = dict.fromkeys(name for one in flat for name in one)
    return [name for name in names if len({one.get(name) for one in flat}) > 1]


def _told(settings: Mapping[str, str], names: Iterable[str]) -> str:
    return ", ".join(f"{n.rpartition('.')[2]}={settings[n]}" for n in names if n in settings)


def _joined(parts: Iterable[tuple[str, str]]) -> list[str]:
    """Join names and settings; where that is too long, a number replaces the settings."""
    labels: list[str] = []
    numbers: dict[str, int] = {}
    for start, told in parts:
        label = f"{start} ({told})" if told else start
        if len(label) > _LONGEST:
            label = f"{start[:40]} #{numbers.setdefault(label, len(numbers) + 1)}"
        labels.append(label)
    return labels
