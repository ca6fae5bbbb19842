"""Short names that tell runs apart: only the settings that differ between them are spelled out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from secureafl.toml import flatten

# These do not make two runs different experiments; the attack decides the scene instead.
_SHARED = ("seed", "threads", "device", "attack", "defense.", "task.kind")
# Nor do these of `secureafl.fit`, which tell nobody anything.
_CHECKED = ("weights", "samples", "module", "loss", "metrics")
_SHARED += tuple(f"task.{part}_checksum" for part in _CHECKED)
_LONGEST = 60
_BROUGHT = "attacks by clients"  # `secureafl join --attack`: the experiment does not name them
UNKNOWN = "no known attack"  # of a deployment: who is malicious, a server does not know


class Labels(NamedTuple):
    """How one run is called among others."""

    variant: str  # the defence, and what else was set differently
    scene: str  # what the defence stood against


def kind(experiment: Mapping[str, Any], part: str) -> str:
    """The kind of an experiment's defence, attack or task."""
    found = experiment.get(part, "unknown")
    return str(found.get("kind", "unknown") if isinstance(found, Mapping) else found)


def as_faced(experiment: Mapping[str, Any], attacked: bool, deployed: bool) -> Mapping[str, Any]:
    """The experiment with the attack that was met: clients of a deployment may bring their own.

    Args:
        experiment: The settings of a run.
        attacked: Whether any of its uploads was known to be malicious.
        deployed: Whether its clients are real, so that there may be more than is known.
    """
    met = _BROUGHT if attacked else UNKNOWN if deployed else "none"
    named = met == "none" or kind(experiment, "attack") != "none"
    return experiment if named else {**experiment, "attack": {"kind": met}}


def flat_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Every setting under its dotted name, as text."""
    return {name: as_text(value) for name, value in flatten(values).items()}


def as_text(value: Any) -> str:
    """A setting as a reader would write it."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def label_runs(experiments: Sequence[Mapping[str, Any]]) -> list[Labels]:
    """Labels for runs that are shown together."""
    flat = [flat_texts(experiment) for experiment in experiments]
    common = [
        name
        for name in _varying(flat)
        if not name.startswith(_SHARED) and _varies_within_a_kind(name, flat)
    ]
    defenses, attacks, tasks = (
        [kind(experiment, part) for experiment in experiments]
        for part in ("defense", "attack", "task")
    )
    own_of, scene_of = _own("defense", defenses, flat), _own("attack", attacks, flat)
    variants = [
        (defense, _spelled_out(mine, [*own_of[defense], *common]))
        for defense, mine in zip(defenses, flat, strict=True)
    ]
    scenes = [
        ("no attack" if attack == "none" else attack, _spelled_out(mine, scene_of[attack]))
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
    """By kind: the settings of a part (`attack.std`, `attack_from`) that differ among its runs."""
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


def _varies_within_a_kind(name: str, flat: Sequence[Mapping[str, str]]) -> bool:
    """Whether a setting differs between runs that have the same kind of plug-in in its table.

    Where kinds differ, so do their settings, and the kind says it all.
    """
    table, _, key = name.rpartition(".")
    values: dict[str | None, set[str | None]] = {}
    for one in flat:
        values.setdefault(one.get(f"{table}.kind"), set()).add(one.get(name))
    return key == "kind" or any(len(found) > 1 for found in values.values())


def _spelled_out(settings: Mapping[str, str], names: Iterable[str]) -> str:
    short = {name: name.removesuffix(".kind").rpartition(".")[2] for name in names}
    return ", ".join(f"{short[n]}={settings[n]}" for n in short if n in settings)


def _joined(parts: Iterable[tuple[str, str]]) -> list[str]:
    """Labels of bearable length: where too much differs, a number stands for it."""
    labels: list[str] = []
    numbers: dict[str, int] = {}
    for start, settings in parts:
        label = f"{start} ({settings})" if settings else start
        if len(label) > _LONGEST:
            label = f"{start[:40]} #{numbers.setdefault(label, len(numbers) + 1)}"
        labels.append(label)
    return labels
