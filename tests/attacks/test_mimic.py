import numpy as np
import pytest
import torch
from attacking import Crowd, arrival, context, crafted, lone, uploads_its_own, view
from hypothesis import given
from hypothesis import strategies as st
from reference import attacks_crafted as oracle

from secureafl.attacks import Mimic
from secureafl.core.errors import ConfigError

CLIENTS, SIZE = 6, 5


def looks(seed, count=12):
    """What the attackers see at one upload after the other; ever more clients have trained."""
    rng = np.random.default_rng(seed)
    centres, malicious = 2 * rng.normal(size=(CLIENTS, SIZE)), rng.random(CLIENTS) < 0.3
    malicious[0] = False
    for number in range(count):
        known = np.arange(CLIENTS) <= number
        yield Crowd(centres + rng.normal(size=(CLIENTS, SIZE)), known, malicious)


@pytest.mark.parametrize("warm_up", [1, 4, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(seed=st.integers(0, 2**32 - 1))
def test_mimic_copies_whom_its_oracle_copies(warm_up, dtype, seed):
    attack = Mimic(warm_up)
    state = attack.init(context(clients=CLIENTS, size=SIZE))
    reference = oracle.Mimic(state.direction.numpy(), CLIENTS, warm_up)
    for crowd in looks(seed):
        own = torch.zeros(SIZE, dtype=dtype)
        update, state = attack.poison_update(state, arrival(own), view(trained=crowd.seen(dtype)))
        chosen = reference.chosen(crowd.gradients, crowd.known & ~crowd.malicious)
        scores = np.abs(reference.scores)
        close = np.isclose(scores, scores[chosen], rtol=1e-4)
        copies = (crowd.seen(dtype).gradients == update).all(dim=1).numpy()
        assert (copies & close).any()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    np.testing.assert_allclose(state.scores, reference.scores, rtol=tolerance, atol=tolerance)


def test_direction_becomes_that_of_the_greatest_variance():
    rng = np.random.default_rng(0)
    attack = Mimic()
    state = attack.init(context(clients=8, size=3))
    for _ in range(60):
        gradients = rng.normal(size=(8, 3)) * [0.3, 5.0, 0.3]
        seen = view(trained=lone(gradients).seen())
        _, state = attack.poison_update(state, arrival(torch.zeros(3).double()), seen)
    assert abs(float(state.direction[1])) > 0.99


def test_after_the_warm_up_the_same_client_is_copied_whatever_it_sends():
    attack, own = Mimic(warm_up=3), arrival(torch.zeros(SIZE).double())
    state = attack.init(context(clients=CLIENTS, size=SIZE))
    *learning, last = (crowd._replace(known=np.ones(CLIENTS, bool)) for crowd in looks(0, 4))
    for crowd in learning:
        _, state = attack.poison_update(state, own, view(trained=crowd.seen()))
    chosen = int(np.where(last.malicious, -1, state.scores.abs()).argmax())
    for scale in (1.0, -7.0, 100.0):
        crowd = last._replace(gradients=scale * last.gradients)
        update, state = attack.poison_update(state, own, view(trained=crowd.seen()))
        assert np.array_equal(update, crowd.gradients[chosen])
    assert int(state.count) == 3


def test_warm_up_waits_for_an_honest_client():
    attack, own = Mimic(), arrival(torch.zeros(2).double())
    nobody = lone([[1.0, 2.0], [3.0, 4.0]], malicious=[0, 1])
    _, state = attack.poison_update(
        attack.init(context(clients=2, size=2)), own, view(trained=nobody.seen())
    )
    assert int(state.count) == 0
    assert uploads_its_own(attack, nobody)


def test_weaker_mimics_keep_a_share_of_their_own_gradient():
    own = torch.tensor([4.0, 0.0]).double()
    found = crafted(Mimic(strength=0.25), lone([[0.0, 8.0]]), own=own)
    assert found.tolist() == [3, 2]


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e25])
def test_any_scale_of_gradients_gives_finite_numbers(scale):
    rng = np.random.default_rng(1)
    attack, own = Mimic(), arrival(torch.zeros(SIZE))
    state = attack.init(context(clients=CLIENTS, size=SIZE))
    for _ in range(4):
        crowd = lone(scale * rng.normal(size=(CLIENTS, SIZE)))
        update, state = attack.poison_update(state, own, view(trained=crowd.seen(torch.float32)))
        assert torch.isfinite(update).all()
        assert all(torch.isfinite(part).all() for part in state)


@pytest.mark.parametrize("settings", [{"warm_up": 0}, {"strength": 0.0}, {"strength": 1.5}])
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError):
        Mimic(**settings)
