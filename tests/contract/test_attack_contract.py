"""What every attack owes the simulator, for every entry of the table."""

import pytest
import safetensors.torch
import torch

from secureafl.attacks import ATTACKS
from secureafl.core.protocols import Attack, Backdoor
from secureafl.core.trees import name_tensors, rebuild
from secureafl.core.types import Arrival, AttackerView, Scene

DIM, CLASSES = 12, 10
for_every_attack = pytest.mark.parametrize("kind", ATTACKS)
for_both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
backdoors = [kind for kind in ATTACKS if isinstance(ATTACKS[kind](), Backdoor)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def scene(seed=0):
    mean, std = torch.tensor([0.3]), torch.tensor([0.35])
    return Scene(2, CLASSES, (1, 28, 28), mean, std, generator(seed))


def batch(size=8):
    images = torch.randn(size, 1, 28, 28, generator=generator(1))
    return images, torch.randint(CLASSES, (size,), generator=generator(2))


def trained(dtype=torch.float32, number=0):
    gradient, base = torch.randn(2, DIM, generator=generator(10 + number), dtype=dtype)
    return Arrival(torch.tensor(1), torch.tensor(3), gradient, base)


def view(dtype=torch.float32, number=0):
    weights = torch.randn(DIM, generator=generator(3), dtype=dtype)
    return AttackerView(number, weights, generator(100 + number))


def uploads(attack, state, count=5, dtype=torch.float32):
    made = []
    for number in range(count):
        update, state = attack.poison_update(state, trained(dtype, number), view(dtype, number))
        made.append(update)
    return made, state


@for_every_attack
def test_entry_is_an_attack(kind):
    assert isinstance(ATTACKS[kind](), Attack)


@for_every_attack
@pytest.mark.parametrize("size", [1, 2, 5, 32])
def test_poisoned_batch_keeps_shapes_and_types(kind, size):
    attack = ATTACKS[kind]()
    inputs, labels = batch(size)
    found = attack.poison_batch(attack.init(scene()), inputs, labels)
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
    attack.poison_batch(attack.init(scene()), inputs, labels)
    assert torch.equal(inputs, copies[0])
    assert torch.equal(labels, copies[1])


@for_every_attack
@for_both_dtypes
def test_poisoned_update_keeps_shape_and_type_and_is_finite(kind, dtype):
    attack = ATTACKS[kind]()
    for update in uploads(attack, attack.init(scene()), dtype=dtype)[0]:
        assert update.shape == (DIM,)
        assert update.dtype == dtype
        assert torch.isfinite(update).all()


@for_every_attack
def test_gradient_base_and_global_weights_are_not_modified(kind):
    attack, arrival, seen = ATTACKS[kind](), trained(), view()
    tensors = arrival.gradient, arrival.base, seen.weights
    copies = [tensor.clone() for tensor in tensors]
    attack.poison_update(attack.init(scene()), arrival, seen)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))


@for_every_attack
def test_same_generators_give_the_same_bits(kind):
    attack = ATTACKS[kind]()
    states = attack.init(scene()), attack.init(scene())
    batches = [attack.poison_batch(state, *batch()) for state in states]
    assert torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][1], batches[1][1])
    one, other = (uploads(attack, state)[0] for state in states)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@for_every_attack
def test_torchs_own_generator_is_left_alone(kind):
    attack, before = ATTACKS[kind](), torch.random.get_rng_state()
    state = attack.init(scene())
    attack.poison_batch(state, *batch())
    uploads(attack, state)
    assert torch.equal(torch.random.get_rng_state(), before)


@for_every_attack
def test_state_survives_safetensors_and_goes_on_with_the_same_bits(kind):
    attack = ATTACKS[kind]()
    _, state = uploads(attack, attack.init(scene()))
    saved = safetensors.torch.save(name_tensors(state, "attack"))
    # Another seed: whatever is not in the saved tensors would differ.
    blank = attack.init(scene(seed=99))
    restored = rebuild(blank, "attack", safetensors.torch.load(saved))
    one, other = uploads(attack, state)[0], uploads(attack, restored)[0]
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for a, b in zip(*(attack.poison_batch(s, *batch()) for s in (state, restored)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", backdoors)
def test_stamp_leaves_the_clean_image_alone_and_can_be_repeated(kind):
    attack = ATTACKS[kind]()
    state, (inputs, _) = attack.init(scene()), batch()
    copy = inputs.clone()
    once = attack.stamp(state, inputs)
    assert torch.equal(inputs, copy)
    assert once.shape == inputs.shape
    assert not torch.equal(once, inputs)
    assert torch.equal(attack.stamp(state, once), once)
