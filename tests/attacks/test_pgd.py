import numpy as np
import pytest
import torch
from attacking import arrival, context, view
from hypothesis import given
from hypothesis import strategies as st
from reference import attacks_backdoor as oracle

from secureafl.attacks import Pgd
from secureafl.core.errors import ConfigError

SIZE, RATE = 12, 0.05


class Client:
    """Gradients of a quadratic loss with a noise of its own in every batch."""

    def __init__(self, seed):
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.hessian, self.centre = rng.uniform(0.5, 3, SIZE), rng.normal(size=SIZE)

    def train(self, weights, batch):
        noise = np.random.default_rng([self.seed, batch]).normal(size=SIZE)
        return self.hessian * (weights - self.centre) + 0.3 * noise

    def train_torch(self, weights, batch):
        return torch.from_numpy(self.train(weights.double().numpy(), batch)).to(weights.dtype)


def uploads(attack, client, bases, attacker_index=0, dtype=torch.float64):
    """What it uploads on one model after the other, with the gradients it trained there."""
    state = attack.init(context(size=SIZE))
    for number, base in enumerate(bases):
        gradient = client.train(base, 100 + number)
        trained = arrival(torch.from_numpy(gradient).to(dtype), torch.from_numpy(base).to(dtype))
        seen = view(attacker_index, client.train_torch, RATE)
        update, state = attack.poison_update(state, trained, seen)
        yield gradient, update


def bases(seed, count=5):
    return np.random.default_rng([seed, 1]).normal(size=(count, SIZE))


@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("radius", [0.5, 2.0, 50.0])
@given(seed=st.integers(0, 2**32 - 1))
def test_pgd_equals_its_oracle_and_stays_in_its_ball(steps, radius, seed):
    client, models, lengths = Client(seed), bases(seed), []
    found = uploads(Pgd(steps=steps, radius=radius), client, models)
    for base, (gradient, update) in zip(models, found, strict=True):
        lengths.append(np.linalg.norm(gradient))
        ball = RATE * radius * oracle.usual_lengths(lengths)[-1]
        expected = oracle.pgd(gradient, base, client.train, RATE, steps, ball)
        np.testing.assert_allclose(update, expected, rtol=1e-8, atol=1e-9)
        assert RATE * float(update.norm()) <= ball * (1 + 1e-9)


def test_ball_also_holds_in_float32():
    gradient, update = next(uploads(Pgd(radius=1.0), Client(0), bases(0), dtype=torch.float32))
    assert update.dtype == torch.float32
    assert float(update.norm()) == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


def test_one_step_in_a_wide_ball_is_the_gradient():
    for gradient, update in uploads(Pgd(steps=1, radius=1e6), Client(3), bases(3)):
        assert np.array_equal(update, gradient)


def test_each_client_has_its_own_usual_length():
    attack, client = Pgd(), Client(1)
    state = attack.init(context(size=SIZE, malicious=3))
    gradient = torch.ones(SIZE)
    seen = view(2, client.train_torch, RATE)
    _, state = attack.poison_update(state, arrival(gradient), seen)
    assert state.usual.tolist() == [-1, -1, pytest.approx(SIZE**0.5)]


def test_zero_gradients_give_zero():
    attack = Pgd()
    state, still = attack.init(context(size=SIZE)), arrival(torch.zeros(SIZE))
    update, _ = attack.poison_update(state, still, view(0, Client(0).train_torch, RATE))
    assert not update.any()


@pytest.mark.parametrize("settings", [{"steps": 0}, {"radius": 0.0}, {"radius": float("inf")}])
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError):
        Pgd(**settings)
