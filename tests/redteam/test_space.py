import dataclasses
import typing
from dataclasses import dataclass
from typing import Literal

import pytest
from reference.tiny_task import TinyRegression, TinyTask

from secureafl.attacks import ATTACKS, SignFlip
from secureafl.core.errors import ConfigError
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.space import (
    CONDITIONS,
    FIXED,
    RANGES,
    Range,
    dimensions,
    find_space,
    is_backdoor,
    known_attacks,
)

every_attack = pytest.mark.parametrize("kind", [kind for kind in ATTACKS if kind != "none"])


@dataclass(frozen=True)
class Covered(SignFlip):
    """An attack of which one setting matters only beside another."""

    cover: Literal["own", "none"] = "own"
    share: float = 0.5
    twice: bool = False
    without_range: float = 1.0


def test_every_attack_is_in_the_space():
    assert find_space(TinyTask(), False).keys() == ATTACKS.keys() - {"none"}


def test_only_backdoors_are_searched_for_a_success_rate():
    found = find_space(TinyTask(), True)
    assert "scaling" in found
    assert all(map(is_backdoor, found))


def test_task_without_classes_has_no_backdoors():
    found = find_space(TinyRegression(), False)
    assert "sign_flip" in found
    assert not any(map(is_backdoor, found))
    with pytest.raises(ConfigError, match="a backdoor needs classes"):
        find_space(TinyRegression(), True)


@dataclass(frozen=True)
class TinyPoints(TinyTask):
    """The same noise as plain numbers, without channels, height and width."""

    def load(self):
        data = super().load()
        return data._replace(
            train_inputs=data.train_inputs.flatten(1), test_inputs=data.test_inputs.flatten(1)
        )


def test_task_without_images_has_no_backdoors():
    found = find_space(TinyPoints(), False)
    assert "one_class" in found["composed"]["aim"]
    assert not any(map(is_backdoor, found))
    with pytest.raises(ConfigError, match="a backdoor needs images, and this task has none"):
        find_space(TinyPoints(), True)


def test_task_without_classes_has_none_to_unlearn():
    aims = find_space(TinyRegression(), False)["composed"]["aim"]
    assert set(find_space(TinyTask(), False)["composed"]["aim"]) - set(aims) == {"one_class"}


@every_attack
def test_every_number_has_a_range_or_is_fixed_on_purpose(kind):
    hints = typing.get_type_hints(ATTACKS[kind])
    numbers = {f.name for f in dataclasses.fields(ATTACKS[kind]) if hints[f.name] in (int, float)}
    assert numbers - FIXED == {n for n, d in dimensions(kind).items() if isinstance(d, Range)}


@every_attack
def test_ends_of_ranges_and_choices_are_settings_the_attack_takes(kind):
    for name, dimension in dimensions(kind).items():
        values = dimension[:2] if isinstance(dimension, Range) else dimension
        for value in values:
            assert getattr(ATTACKS[kind](**{name: value}), name) == value


def test_defaults_and_presets_lie_in_the_space():
    space = find_space(TinyTask(), False)
    for attack in known_attacks(space):
        for name, value in attack.items():
            if name == "kind":
                continue
            dimension = space[attack["kind"]][name]
            if isinstance(dimension, Range):
                assert dimension.low <= value <= dimension.high, (attack, name)
            else:
                assert value in dimension


def test_known_attacks_are_all_defaults_and_then_presets():
    space = find_space(TinyTask(), False)
    found = list(known_attacks(space))
    assert [attack["kind"] for attack in found[: len(space)]] == list(space)
    assert {"kind": "sign_flip", "factor": 0.5} in found[len(space) :]


def test_ranges_and_conditions_are_of_settings_that_attacks_have():
    known = {f"{k}.{f.name}" for k, cls in ATTACKS.items() for f in dataclasses.fields(cls)}
    known |= {name.partition(".")[2] for name in known}
    assert RANGES.keys() | CONDITIONS.keys() | FIXED <= known


def test_new_attack_is_searched_once_it_is_in_the_table(monkeypatch):
    monkeypatch.setitem(ATTACKS, "covered", Covered)
    found = find_space(TinyTask(), False)["covered"]
    assert found == {
        "factor": RANGES["factor"],
        "cover": ("own", "none"),
        "share": RANGES["share"],
        "twice": (False, True),
    }


def test_setting_that_does_not_matter_is_left_out(monkeypatch):
    monkeypatch.setitem(ATTACKS, "covered", Covered)
    attacks = Optimiser({"covered": dimensions("covered")}, 0, known=0).ask(20)
    assert {attack["cover"] for attack in attacks} == {"own", "none"}
    assert all(("share" in attack) == (attack["cover"] == "own") for attack in attacks)
