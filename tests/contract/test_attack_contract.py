"""What every attack owes the simulator, for every entry of the table."""

import dataclasses
from typing import get_args

import pytest
import safetensors.torch
import torch

from secureafl.attacks import ATTACKS, Composed, ComposedBackdoor, Pgd, SignFlip
from secureafl.attacks.parts import Aim, Cover
from secureafl.core.errors import ConfigError
from secureafl.core.protocols import Backdoor
from secureafl.core.traits import further_batches, is_recordable
from secureafl.core.trees import name_tensors, rebuild
from secureafl.experiment import from_mapping
from secureafl.settings import short_name
from secureafl.testing import check_attack
from secureafl.testing.attack import _check_recordable
from secureafl.testing.play import CLASSES, DIM, Play, context, generator

for_every_attack = pytest.mark.parametrize("kind", ATTACKS)
for_both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
backdoors = [kind for kind in ATTACKS if isinstance(ATTACKS[kind](), Backdoor)]
PRESETS = [
    (kind, preset) for kind, cls in ATTACKS.items() for preset in getattr(cls, "presets", {})
]
MEMBERS, ROUNDS = 3, 24


def batch(size=8):
    images = torch.randn(size, 1, 28, 28, generator=generator(1))
    return images, torch.randint(CLASSES, (size,), generator=generator(2))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def poisoned_batches(attack, state):
    return [x for m in range(MEMBERS) for x in attack.poison_batch(state, *batch(), number(m))]


def number(attacker_index):
    return torch.tensor(attacker_index)


@for_every_attack
def test_entry_keeps_the_contract(kind):
    check_attack(ATTACKS[kind]())


@pytest.mark.parametrize("cover", get_args(Cover))
@pytest.mark.parametrize("aim", get_args(Aim))
def test_composed_attack_says_rightly_whether_it_can_be_recorded(aim, cover):
    check_composed(Composed, cover, aim=aim)


@pytest.mark.parametrize("cover", get_args(Cover))
def test_composed_backdoor_says_rightly_whether_it_can_be_recorded(cover):
    check_composed(ComposedBackdoor, cover)


def check_composed(kind, cover, **given):
    attack = kind(cover, timing="moving", curvature=0.3, collusion="groups", **given)
    assert is_recordable(attack) == (cover != "fresh")
    if is_recordable(attack):
        _check_recordable(attack, "composed")


def test_attack_trains_on_as_many_further_batches_as_it_says():
    assert [further_batches(Pgd(steps=steps)) for steps in (1, 2, 10)] == [0, 1, 9]
    trained = {aim for aim in get_args(Aim) if further_batches(Composed(aim=aim))}
    assert trained == {"label", "one_class"}
    assert further_batches(SignFlip()) == 0


def test_attack_with_an_upload_of_its_own_is_not_recorded_because_its_base_was():
    class Later(SignFlip):
        def poison_update(self, state, arrival, view):
            return -view.round * arrival.gradient, state

    assert is_recordable(SignFlip())
    assert not is_recordable(Later())


@for_every_attack
@for_both_dtypes
@pytest.mark.parametrize("malicious", [1, 2, 3, 6])
def test_uploads_keep_shape_and_type_and_are_finite(kind, dtype, malicious):
    made = Play(ATTACKS[kind](), dtype, malicious=malicious).uploads(ROUNDS)
    assert made
    for update in made:
        assert update.shape == (DIM,)
        assert update.dtype == dtype
        assert torch.isfinite(update).all()


@for_every_attack
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-15, 1e12])
def test_uploads_are_finite_however_long_gradients_are(kind, scale):
    for update in Play(ATTACKS[kind](), scale=scale).uploads(ROUNDS):
        assert torch.isfinite(update).all()


@for_every_attack
@for_both_dtypes
def test_upload_stays_what_it_was_when_the_run_goes_on(kind, dtype):
    play = Play(ATTACKS[kind](), dtype)
    made = play.uploads(ROUNDS)
    copies = [update.clone() for update in made]
    play.uploads(ROUNDS)
    assert same(made, copies)


@for_every_attack
def test_one_attack_value_serves_two_runs_at_once(kind):
    attack = ATTACKS[kind]()
    alone = Play(attack).uploads(ROUNDS)
    together, other = Play(attack), Play(attack, scale=2.0)
    made = []
    for _ in range(ROUNDS):
        made += together.uploads(1)
        other.uploads(1)
    assert same(made, alone)


@for_every_attack
def test_torchs_own_generator_is_left_alone(kind):
    attack, before = ATTACKS[kind](), torch.random.get_rng_state()
    play = Play(attack)
    poisoned_batches(attack, play.state)
    play.uploads(ROUNDS)
    assert torch.equal(torch.random.get_rng_state(), before)


@for_every_attack
@for_both_dtypes
def test_state_survives_safetensors_and_goes_on_with_the_same_bits(kind, dtype):
    attack = ATTACKS[kind]()
    play, twin = Play(attack, dtype), Play(attack, dtype)
    play.uploads(ROUNDS // 2)
    twin.uploads(ROUNDS // 2)
    saved = safetensors.torch.save(name_tensors(play.state, "attack"))
    # Another seed: whatever is not in the saved tensors would differ.
    blank = attack.init(context(seed=99))
    twin.state = rebuild(blank, "attack", safetensors.torch.load(saved))
    assert same(*(poisoned_batches(attack, p.state) for p in (play, twin)))
    assert same(play.uploads(ROUNDS), twin.uploads(ROUNDS))


@for_every_attack
def test_regression_is_attacked_or_refused_in_one_line(kind):
    attack, (inputs, _) = ATTACKS[kind](), batch()
    labels = torch.randn(len(inputs), generator=generator(4))
    refused = ""
    try:
        play = Play(attack, classes=0)
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert "\n" not in refused
        return
    found = attack.poison_batch(play.state, inputs, labels, number(0))
    assert found[1].dtype == labels.dtype
    assert torch.isfinite(found[1]).all()
    assert all(torch.isfinite(update).all() for update in play.uploads(ROUNDS))


@pytest.mark.parametrize("kind", [kind for kind in ATTACKS if kind != "none"])
def test_every_attack_has_a_quiet_variant(kind):
    assert "stealth" in ATTACKS[kind].presets
    assert "paper" not in ATTACKS[kind].presets, "those are the defaults"


@pytest.mark.parametrize(("kind", "preset"), PRESETS)
def test_preset_changes_the_settings_it_names_and_no_others(kind, preset):
    default, made = ATTACKS[kind](), from_mapping({"attack": f"{kind}@{preset}"}).attack
    changed = ATTACKS[kind].presets[preset]
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        assert (value != getattr(default, field.name)) == (field.name in changed)
        assert value == changed.get(field.name, value)
    assert short_name(made) == (f"{kind}@{preset}" if changed else kind)
    assert all(torch.isfinite(update).all() for update in Play(made).uploads(ROUNDS))


@pytest.mark.parametrize("kind", backdoors)
def test_stamp_leaves_the_clean_image_alone_and_can_be_repeated(kind):
    attack = ATTACKS[kind]()
    state, (inputs, _) = attack.init(context()), batch()
    copy = inputs.clone()
    once = attack.stamp(state, inputs)
    assert torch.equal(inputs, copy)
    assert once.shape == inputs.shape
    assert not torch.equal(once, inputs)
    assert torch.equal(attack.stamp(state, once), once)
