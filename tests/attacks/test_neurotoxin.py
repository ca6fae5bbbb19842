import numpy as np
import pytest
import torch
from attacking import arrival, context, view
from hypothesis import given
from hypothesis import strategies as st
from reference import attacks_backdoor as oracle

from secureafl.attacks import Neurotoxin
from secureafl.core.errors import ConfigError

SIZE, MEMBERS = 12, 3


def stream(seed, count=12):
    """Member, gradient and base of each upload, as float32 has them; coarse, so that many tie."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        vectors = np.round(2 * rng.normal(size=(2, SIZE))) / 2
        yield int(rng.integers(MEMBERS)), *vectors


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(seed=st.integers(0, 2**32 - 1))
def test_neurotoxin_equals_its_oracle(share, dtype, seed):
    attack, last = Neurotoxin(masked_share=share, factor=2.0), {}
    state = attack.init(context(size=SIZE, malicious=MEMBERS))
    for attacker_index, gradient, base in stream(seed):
        trained = arrival(*(torch.from_numpy(x).to(dtype) for x in (gradient, base)))
        update, state = attack.poison_update(state, trained, view(attacker_index))
        expected = oracle.neurotoxin(gradient, base, last.get(attacker_index), share, 2.0)
        assert np.array_equal(update, expected)
        last[attacker_index] = base


@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 0.99))
def test_upload_is_zero_where_masked_and_the_gradient_elsewhere(seed, share):
    attack, rng = Neurotoxin(masked_share=share, factor=1.0), np.random.default_rng(seed)
    state = attack.init(context(size=SIZE))
    first, gradient, base = torch.from_numpy(rng.normal(size=(3, SIZE)))
    _, state = attack.poison_update(state, arrival(gradient, first), view())
    update, _ = attack.poison_update(state, arrival(gradient, base), view())
    masked = update == 0
    assert int(masked.sum()) == round(share * SIZE)
    assert torch.equal(update[~masked], gradient[~masked])
    moved = (base - first).abs()
    most = moved.sort(descending=True).values[: len(moved[masked])]
    assert torch.equal(moved[masked].sort(descending=True).values, most)


def test_first_contact_masks_by_the_own_gradient():
    attack = Neurotoxin(masked_share=0.25, factor=1.0)
    gradient = torch.arange(-4.0, 8.0)
    update, _ = attack.poison_update(attack.init(context()), arrival(gradient), view())
    assert torch.equal(update, torch.where(gradient > 4, 0, gradient))


def test_model_that_did_not_move_tells_nothing():
    attack = Neurotoxin(masked_share=0.25, factor=1.0)
    trained = arrival(torch.arange(-4.0, 8.0), torch.ones(12))
    first, state = attack.poison_update(attack.init(context()), trained, view())
    second, _ = attack.poison_update(state, trained, view())
    assert torch.equal(first, second)


def test_received_models_are_remembered_by_client():
    attack = Neurotoxin()
    _, state = attack.poison_update(
        attack.init(context()), arrival(torch.ones(12), torch.full((12,), 5.0)), view(1)
    )
    assert state.met.tolist() == [False, True]
    assert (state.received[1] == 5).all()
    assert not state.received[0].any()


@pytest.mark.parametrize(
    "settings", [{"masked_share": 1.0}, {"masked_share": -0.1}, {"factor": 0.0}]
)
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError):
        Neurotoxin(**settings)


def test_regression_is_refused():
    with pytest.raises(ConfigError, match="images and classes"):
        Neurotoxin().init(context(classes=0))
