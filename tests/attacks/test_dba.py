import numpy as np
import pytest
import torch
from attacking import arrival, context, generator, view
from reference import attacks as whole
from reference import attacks_backdoor as oracle

from secureafl.attacks import Dba
from secureafl.core.errors import ConfigError


def poisoned(attack, state, images, attacker_index):
    labels = torch.full((len(images),), 3)
    return attack.poison_batch(state, images, labels, torch.tensor(attacker_index))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9)])
@pytest.mark.parametrize("side", [2, 4, 6])
@pytest.mark.parametrize("attacker_index", [0, 1, 2, 3, 5])
def test_each_client_stamps_its_quadrant_and_nothing_else(shape, side, attacker_index):
    attack = Dba(trigger_side=side, poisoned_share=1.0)
    state = attack.init(context(shape))
    images = torch.randn(5, *shape, generator=generator(1))
    found, labels = poisoned(attack, state, images, attacker_index)
    expected = oracle.stamped_part(images.numpy(), state.trigger.numpy(), attacker_index)
    assert np.array_equal(found.numpy(), expected)
    assert (labels == attack.target_class).all()


def test_quadrants_of_an_images_own_trigger_fit_the_whole():
    attack = Dba(poisoned_share=1.0, trigger_per="image")
    state = attack.init(context())
    images = torch.randn(3, 1, 8, 8, generator=generator(2))
    found = torch.stack([poisoned(attack, state, images, index)[0] for index in range(4)])
    stamped = torch.where(found != images, found, 0).sum(dim=0)
    assert torch.equal(stamped[..., -4:, -4:], attack.stamp(state, images)[..., -4:, -4:])


@pytest.mark.parametrize("side", [2, 4, 8])
def test_parts_cover_the_trigger_and_do_not_overlap(side):
    state = Dba(trigger_side=side).init(context())
    assert torch.equal(state.parts.sum(dim=0), torch.ones(side, side, dtype=torch.int64))
    assert (state.parts.sum(dim=(1, 2)) == side**2 // 4).all()


def test_four_clients_together_stamp_the_whole_trigger():
    attack = Dba(poisoned_share=1.0)
    state = attack.init(context())
    images = torch.randn(2, 1, 8, 8, generator=generator(2))
    stamped = images
    for attacker_index in range(4):
        stamped, _ = poisoned(attack, state, stamped, attacker_index)
    assert torch.equal(stamped, attack.stamp(state, images))


def test_test_images_carry_the_whole_trigger():
    attack = Dba()
    state = attack.init(context())
    images = torch.randn(2, 1, 8, 8, generator=generator(2))
    expected = whole.stamped(images.numpy(), state.trigger.numpy())
    assert np.array_equal(attack.stamp(state, images).numpy(), expected)


def test_clean_part_of_a_batch_stays_as_it_is():
    attack = Dba(target_class=7)
    state = attack.init(context())
    images = torch.randn(6, 1, 8, 8, generator=generator(3))
    inputs, labels = poisoned(attack, state, images, 2)
    assert torch.equal(inputs[3:], images[3:])
    assert labels.tolist() == [7, 7, 7, 3, 3, 3]


def test_gradient_is_multiplied():
    gradient = torch.linspace(-1, 2, 12)
    attack = Dba(factor=3.0)
    found, _ = attack.poison_update(attack.init(context()), arrival(gradient), view())
    torch.testing.assert_close(found, 3 * gradient)


@pytest.mark.parametrize("settings", [{"trigger_side": 3}, {"trigger_side": 0}, {"factor": 0.0}])
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError):
        Dba(**settings)
