"""What every attack owes the simulator, for every entry of the table."""

import dataclasses
from typing import get_args

import pytest
import safetensors.torch
import torch
from contract.attack_cases import CLASSES, DIM, Play, context, generator

from secureafl.attacks import ATTACKS
from secureafl.core.errors import ConfigError
from secureafl.core.protocols import Attack, Backdoor
from secureafl.core.trees import name_tensors, rebuild
from secureafl.core.types import Arrival, Knowledge
from secureafl.experiment import from_mapping
from secureafl.settings import short_name

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
def test_entry_is_an_attack_that_says_what_it_knows(kind):
    attack = ATTACKS[kind]()
    assert isinstance(attack, Attack)
    assert attack.knows in get_args(Knowledge)
    assert "knows" not in {field.name for field in dataclasses.fields(attack)}


@for_every_attack
@pytest.mark.parametrize("size", [1, 2, 5, 32])
@pytest.mark.parametrize("attacker_index", range(MEMBERS))
def test_poisoned_batch_keeps_shapes_and_types(kind, size, attacker_index):
    attack = ATTACKS[kind]()
    inputs, labels = batch(size)
    found = attack.poison_batch(attack.init(context()), inputs, labels, number(attacker_index))
    for new, old in zip(found, (inputs, labels), strict=True):
        assert new.shape == old.shape
        assert new.dtype == old.dtype
    assert torch.isfinite(found[0]).all()
    assert 0 <= int(found[1].min()) <= int(found[1].max()) < CLASSES


@for_every_attack
def test_clean_batch_is_not_modified(kind):
    attack = ATTACKS[kind]()
    inputs, labels = batch()
    copies = inputs.clone(), labels.clone()
    attack.poison_batch(attack.init(context()), inputs, labels, number(1))
    assert same((inputs, labels), copies)


def on_meta(tree):
    if isinstance(tree, torch.Tensor):
        return tree.to("meta")
    parts = [on_meta(part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


@for_every_attack
def test_poisoning_a_batch_never_looks_at_a_number(kind):
    # On "meta" tensors have no values, so reading one raises: what a recorded gradient needs.
    attack = ATTACKS[kind]()
    state, given = on_meta(attack.init(context())), on_meta((*batch(), number(0)))
    inputs, labels = attack.poison_batch(state, *given)
    assert inputs.device.type == labels.device.type == "meta"


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
def test_upload_is_finite_while_nobody_is_known(kind, dtype):
    play = Play(ATTACKS[kind](), dtype)
    gradient = torch.randn(DIM, generator=generator(3), dtype=dtype)
    trained = Arrival(torch.tensor(4), torch.tensor(0), gradient, play.models[0])
    update = play.poisoned(trained)
    assert update.dtype == dtype
    assert torch.isfinite(update).all()


@for_every_attack
def test_state_keeps_its_shapes_and_types(kind):
    play = Play(ATTACKS[kind]())
    before = {k: (t.shape, t.dtype) for k, t in name_tensors(play.state, "state").items()}
    play.uploads(ROUNDS)
    after = {k: (t.shape, t.dtype) for k, t in name_tensors(play.state, "state").items()}
    assert after == before


@for_every_attack
@for_both_dtypes
def test_upload_stays_what_it_was_when_the_run_goes_on(kind, dtype):
    play = Play(ATTACKS[kind](), dtype)
    made = play.uploads(ROUNDS)
    copies = [update.clone() for update in made]
    play.uploads(ROUNDS)
    assert same(made, copies)


@for_every_attack
def test_same_generators_give_the_same_bits(kind):
    attack = ATTACKS[kind]()
    one, other = Play(attack), Play(attack)
    assert same(*(poisoned_batches(attack, play.state) for play in (one, other)))
    assert same(one.uploads(ROUNDS), other.uploads(ROUNDS))


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
