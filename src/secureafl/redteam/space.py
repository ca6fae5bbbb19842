"""What a search chooses from: every built-in attack, and how far each of its settings goes.

Choices and switches are read off the attack's class. A number needs a range, and `RANGES` is where
these are; one that has none stays at its default.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import torch

from secureafl.attacks import ATTACKS, NoAttack
from secureafl.core.errors import ConfigError
from secureafl.core.protocols import Backdoor, Task
from secureafl.runtime.loading import load_data
from secureafl.settings import presets_of

_IMAGES = 4  # dimensions of a batch of them: samples, channels, height, width
_DIGITS = 4  # of a number that is tried: more would only make it hard to read


class Range(NamedTuple):
    """The numbers a setting may have; `log`: small ones are as likely as large ones."""

    low: float
    high: float
    log: bool = False


Dimension = Range | tuple[Any, ...]  # of a setting: a range, or the values there are
Space = dict[str, dict[str, Dimension]]  # by attack and setting

# By setting, or by attack and setting where one attack differs from the others.
RANGES: dict[str, Range] = {
    "strength": Range(0.1, 1.0),
    "factor": Range(0.1, 100.0, log=True),
    "three_d_fed.factor": Range(1.0, 120.0, log=True),
    "std": Range(0.01, 200.0, log=True),
    "poisoned_share": Range(0.1, 1.0),
    "steps": Range(1, 20),
    "radius": Range(0.5, 50.0, log=True),
    "masked_share": Range(0.0, 0.5),
    "mask_std": Range(0.001, 0.2, log=True),
    "group_size": Range(1, 10),
    "z": Range(0.0, 3.0),
    "epsilon": Range(0.05, 50.0, log=True),
    "warm_up": Range(10, 1000, log=True),
    "share": Range(0.1, 1.0),
    "curvature": Range(0.0, 1.0),
    "composed.factor": Range(0.2, 10.0, log=True),
    "composed_backdoor.factor": Range(0.2, 10.0, log=True),
    "period": Range(1, 200, log=True),
    "groups": Range(2, 8),
}

# Settings that only matter while another one has one of these values; else they are left out, or
# the budget would go to attacks that do the same.
CONDITIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "share": ("cover", ("own", "private", "fresh", "copy", "copies")),
    "period": ("timing", ("late", "on_off", "early")),
    "groups": ("collusion", ("groups",)),
}

# Settings that are no matter of strength: which class is the goal, how a trigger looks, and what
# has to suit the model.
FIXED = frozenset(
    {"target_class", "victim_class", "trigger_side", "trigger_per", "masked_classes", "mark"}
)

# Choices that only make sense where samples have classes.
_NEED_CLASSES: Mapping[str, tuple[str, ...]] = {"aim": ("one_class",)}

# The attacks made of parts, in which most others lie; a search spends half of its budget on the
# first of these that it may use.
COMPOSED = ("composed", "composed_backdoor")


def find_space(task: Task, backdoors_only: bool) -> Space:
    """The attacks that can be mounted on this task, with the settings that are searched."""
    data = load_data(task, torch.device("cpu")).on_cpu
    has_classes = not data.train_labels.is_floating_point()
    has_images = data.train_inputs.dim() == _IMAGES
    suits = has_classes and has_images
    if backdoors_only and not suits:
        missing = "images" if has_classes else "classes"
        raise ConfigError(f"--against asr: a backdoor needs {missing}, and this task has none")
    kinds = [
        kind
        for kind, attack in ATTACKS.items()
        if attack is not NoAttack and (suits if is_backdoor(kind) else not backdoors_only)
    ]
    left_out = {} if has_classes else _NEED_CLASSES
    return {
        kind: {
            name: _without(left_out.get(name, ()), its) for name, its in dimensions(kind).items()
        }
        for kind in kinds
    }


def _without(choices: Sequence[str], dimension: Dimension) -> Dimension:
    """The values of a setting but for choices that make no sense for the task."""
    if isinstance(dimension, Range):
        return dimension
    return tuple(value for value in dimension if value not in choices)


def is_backdoor(kind: str) -> bool:
    """Whether the attack has a trigger, so that its success rate can be measured."""
    return isinstance(ATTACKS[kind](), Backdoor)


def dimensions(kind: str) -> dict[str, Dimension]:
    """The settings of an attack that are searched."""
    hints = typing.get_type_hints(ATTACKS[kind])
    found: dict[str, Dimension] = {}
    for field in _fields(kind):
        given = RANGES.get(f"{kind}.{field.name}", RANGES.get(field.name))
        if field.name in FIXED:
            continue
        if get_origin(hints[field.name]) is Literal:
            found[field.name] = get_args(hints[field.name])
        elif hints[field.name] is bool:
            found[field.name] = (False, True)
        elif given is not None:
            whole = hints[field.name] is int
            ends = (int(given.low), int(given.high)) if whole else (given.low, given.high)
            found[field.name] = Range(*ends, given.log)
    return found


def known_attacks(space: Space) -> Iterator[dict[str, Any]]:
    """Every attack with its defaults, then every preset: where a search begins."""
    presets = {kind: list(presets_of(ATTACKS[kind]).values()) or [{}] for kind in space}
    for place in range(max(map(len, presets.values()))):
        for kind, changes in presets.items():
            if place < len(changes):
                yield {"kind": kind, **_settings(kind, space[kind], changes[place])}


def complete(attack: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """An attack with all of its settings that are searched; those not given have their defaults.

    >>> from secureafl.redteam.space import Range, complete
    >>> complete({"kind": "sign_flip"}, {"sign_flip": {"factor": Range(0.1, 100.0)}})
    {'kind': 'sign_flip', 'factor': 1.7}
    """
    given = {name: value for name, value in attack.items() if name != "kind"}
    kind = attack.get("kind")
    if kind is None:
        raise ConfigError(f"start-from: {dict(attack)} has no kind of attack; {_kinds(space)}")
    if not isinstance(kind, str) or kind not in space:
        raise ConfigError(f"start-from: attack {kind!r}; {_kinds(space)}")
    made = {k: readable(v) for k, v in _settings(kind, space[kind], given).items()}
    if others := [name for name in given if name not in made]:
        remedy = f"of {kind} these are searched: {', '.join(made) or 'none'}"
        raise ConfigError(f"start-from: setting {', '.join(others)} is not searched; {remedy}")
    for name, value in made.items():
        if not _lies_in(space[kind][name], value):
            remedy = f"give {_told(space[kind][name])}"
            raise ConfigError(f"start-from: {name} = {value!r} of {kind} is not searched; {remedy}")
    return {"kind": kind, **made}


def _kinds(space: Space) -> str:
    return f"this search has {', '.join(space)}"


def _lies_in(dimension: Dimension, value: Any) -> bool:
    """Whether a search may choose this value; the optimiser has no notion of others."""
    if not isinstance(dimension, Range):
        return value in dimension
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) or not isinstance(dimension.low, int)
    return number and whole and dimension.low <= value <= dimension.high


def _told(dimension: Dimension) -> str:
    if isinstance(dimension, Range):
        return f"a number from {dimension.low:g} to {dimension.high:g}"
    return f"one of {', '.join(str(value).lower() for value in dimension)}"


def _settings(
    kind: str, searched: Mapping[str, Dimension], changes: Mapping[str, Any]
) -> dict[str, Any]:
    values = {field.name: field.default for field in _fields(kind)} | dict(changes)
    return {name: values[name] for name in searched if matters(name, values)}


def _fields(kind: str) -> Sequence[dataclasses.Field[Any]]:
    return dataclasses.fields(typing.cast(Any, ATTACKS[kind]))


def matters(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting changes the attack, given those before it."""
    other, needed = CONDITIONS.get(name, ("", ()))
    return other not in settings or settings[other] in needed


def readable(value: Any) -> Any:
    """A value as it is tried and written down."""
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
