import numpy as np
import pytest
import torch
from reference import attacks as oracle
from reference.attacks_backdoor import own_patch

from secureafl.attacks import Gaussian, LabelFlip, NoAttack, Scaling, SignFlip
from secureafl.core.errors import ConfigError
from secureafl.core.types import Arrival, AttackContext, AttackerView


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def context(shape=(1, 8, 8), classes=10, seed=0):
    channels = torch.arange(1.0, shape[0] + 1) / 10
    return AttackContext(
        num_clients=6,
        num_malicious=2,
        num_classes=classes,
        input_shape=shape,
        pixel_mean=channels,
        pixel_std=2 * channels,
        layout={"weight": (10, 1), "bias": (1,)},
        generator=generator(seed),
    )


def no_training(weights, number):
    raise AssertionError("this attack trains no further")


def uploaded(attack, gradient, seed=0):
    arrival = Arrival(torch.tensor(0), torch.tensor(0), gradient, torch.zeros_like(gradient))
    seen = AttackerView(0, 0, 0.1, generator(seed), no_training)
    return attack.poison_update(attack.init(context()), arrival, seen)[0]


GRADIENT, MEMBER = torch.linspace(-2, 3, 11), torch.tensor(1)


def test_without_an_attack_nothing_changes():
    images, labels = torch.randn(4, 1, 8, 8, generator=generator()), torch.arange(4)
    found = NoAttack().poison_batch((), images, labels, MEMBER)
    assert torch.equal(found[0], images)
    assert torch.equal(found[1], labels)
    assert torch.equal(uploaded(NoAttack(), GRADIENT), GRADIENT)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_label_flip_mirrors_the_labels(classes):
    attack, labels = LabelFlip(), torch.arange(classes)
    state = attack.init(context(classes=classes))
    images = torch.randn(classes, 1, 8, 8, generator=generator())
    inputs, flipped = attack.poison_batch(state, images, labels, MEMBER)
    assert torch.equal(inputs, images)
    assert flipped.tolist() == oracle.flipped_labels(labels.numpy(), classes).tolist()
    assert torch.equal(uploaded(attack, GRADIENT), GRADIENT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_label_flip_negates_labels_that_are_numbers(dtype):
    attack, labels = LabelFlip(), torch.tensor([-1.5, 0.0, 2.25], dtype=dtype)
    state = attack.init(context(classes=0))
    _, flipped = attack.poison_batch(state, torch.zeros(3, 1, 8, 8), labels, MEMBER)
    assert flipped.dtype == dtype
    assert torch.equal(flipped, -labels)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_sign_flip_uploads_the_negative_gradient(factor):
    expected = oracle.sign_flipped(GRADIENT.numpy(), factor)
    np.testing.assert_allclose(uploaded(SignFlip(factor), GRADIENT).numpy(), expected)


def test_gaussian_noise_has_the_given_spread_and_knows_nothing_of_the_data():
    gradient = torch.linspace(-1, 1, 20_000)
    noise = uploaded(Gaussian(200.0), gradient)
    assert float(noise.std()) == pytest.approx(200, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0, abs=6)
    assert torch.equal(noise, uploaded(Gaussian(200.0), -gradient))


def test_gaussian_noise_differs_from_round_to_round():
    noise = [uploaded(Gaussian(), GRADIENT, seed) for seed in (0, 1)]
    assert not torch.equal(*noise)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9)])
@pytest.mark.parametrize("side", [1, 4])
def test_stamp_sets_the_bottom_right_corner_and_nothing_else(shape, side):
    attack = Scaling(trigger_side=side)
    state = attack.init(context(shape))
    images = torch.randn(5, *shape, generator=generator(1))
    expected = oracle.stamped(images.numpy(), state.trigger.numpy())
    assert np.array_equal(attack.stamp(state, images).numpy(), expected)


def test_trigger_is_a_standardised_image_patch():
    made = context((3, 8, 8))
    trigger = Scaling().init(made).trigger
    pixels = trigger * made.pixel_std[:, None, None] + made.pixel_mean[:, None, None]
    assert trigger.shape == (3, 4, 4)
    assert float(pixels.min()) >= -1e-6
    assert float(pixels.max()) <= 1 + 1e-6


def test_trigger_is_one_random_patch_per_run():
    one, same, other = (Scaling().init(context(seed=s)).trigger for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9)])
def test_each_image_can_have_the_triggers_pixels_in_an_order_of_its_own(shape):
    attack = Scaling(trigger_per="image")
    state = attack.init(context(shape))
    images = torch.randn(5, *shape, generator=generator(1))
    expected = [
        oracle.stamped(image[None], own_patch(image, state.trigger.numpy()))[0]
        for image in images.numpy()
    ]
    found = attack.stamp(state, images)
    assert np.array_equal(found.numpy(), np.array(expected))
    assert torch.equal(attack.stamp(state, images[3:]), found[3:]), "in any batch"
    assert not torch.equal(found[0, :, -4:, -4:], found[1, :, -4:, -4:])


@pytest.mark.parametrize(
    ("share", "size", "poisoned"),
    [(0.5, 8, 4), (1.0, 8, 8), (0.1, 8, 1), (0.25, 8, 2), (0.5, 1, 1)],
)
def test_share_of_the_batch_is_stamped_and_labelled_as_the_target(share, size, poisoned):
    attack = Scaling(target_class=7, poisoned_share=share)
    state = attack.init(context())
    images = torch.randn(size, 1, 8, 8, generator=generator(2))
    labels = torch.zeros(size, dtype=torch.int64)
    inputs, found = attack.poison_batch(state, images, labels, MEMBER)
    changed = (inputs != images).flatten(1).any(dim=1)
    assert int(changed.sum()) == poisoned
    assert torch.equal(found == 7, changed)
    assert torch.equal(inputs[changed], attack.stamp(state, images[changed]))


def test_scaling_multiplies_the_gradient():
    torch.testing.assert_close(uploaded(Scaling(factor=25.0), GRADIENT), 25 * GRADIENT)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(std=0.0),
        lambda: SignFlip(factor=-1.0),
        lambda: Scaling(factor=0.0),
        lambda: Scaling(poisoned_share=0.0),
        lambda: Scaling(poisoned_share=1.5),
        lambda: Scaling(trigger_side=0),
        lambda: Scaling(target_class=-1),
        lambda: Scaling(trigger_side=9).init(context((1, 8, 8))),
        lambda: Scaling(trigger_side=7).init(context((1, 6, 8))),
        lambda: Scaling(target_class=10).init(context()),
        lambda: Scaling().init(context((20,))),
        lambda: Scaling().init(context(classes=0)),
    ],
)
def test_setting_that_cannot_work_is_refused_before_training(make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)
