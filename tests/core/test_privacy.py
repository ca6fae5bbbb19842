import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureafl.core.errors import ConfigError
from secureafl.core.privacy import Privacy, delta_of, epsilon_of

# Noise multiplier, releases, epsilon at delta 1e-5: by the PLD accountant of Google's library
# dp-accounting 0.6, which rounds upwards by at most 1e-6 here.
BY_ANOTHER_ACCOUNTANT = [
    (1, 1, 4.377178),
    (2, 10, 7.511276),
    (0.5, 4, 24.381611),
    (8, 100, 5.679587),
]


@pytest.mark.parametrize(("noise", "releases", "epsilon"), BY_ANOTHER_ACCOUNTANT)
def test_epsilon_is_that_of_another_accountant(noise, releases, epsilon):
    assert epsilon_of(math.sqrt(releases) / noise, 1e-5) == pytest.approx(epsilon, abs=2e-6)


def test_epsilon_is_the_published_one_of_the_analytic_gaussian_mechanism():
    # Balle and Wang: sigma 3.730632 for sensitivity 1, epsilon 1, delta 1e-5.
    assert epsilon_of(1 / 3.730632, 1e-5) == pytest.approx(1, abs=1e-5)


def delta_by_integration(mu, epsilon):
    """How much more likely than exp(epsilon) times something is under N(mu, 1) than N(0, 1)."""
    x = np.linspace(-12, 12 + mu, 100_001)
    here, there = (np.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (mu, 0))
    return np.trapezoid(np.maximum(here - np.exp(epsilon) * there, 0), x)


@given(mu=st.floats(0.05, 6), epsilon=st.floats(0, 20))
def test_delta_is_what_the_definition_integrates_to(mu, epsilon):
    assert delta_of(mu, epsilon) == pytest.approx(delta_by_integration(mu, epsilon), abs=1e-7)


@given(mu=st.floats(1e-6, 1e4), delta=st.floats(1e-12, 0.49))
def test_epsilon_and_delta_belong_together(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert math.isfinite(epsilon)
    assert epsilon >= 0
    if epsilon > 1e-9:
        assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-3)
    else:
        assert delta_of(mu, 0.0) <= delta * (1 + 1e-6)


def test_more_noise_protects_more_and_more_releases_less():
    epsilons = [[Privacy(1.0, noise).epsilon(k) for k in (1, 4, 100)] for noise in (4.0, 1.0, 0.25)]
    flat = np.array(epsilons)
    assert (np.diff(flat, axis=0) > 0).all()
    assert (np.diff(flat, axis=1) > 0).all()
    assert Privacy(1.0, 2.0).epsilon(1) == pytest.approx(4.377178, abs=2e-6)  # 2 clip at noise 2
    assert Privacy(1.0, 0.0).epsilon(1) == math.inf
    assert Privacy(1.0, 0.0).epsilon(0) == 0


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    clip=st.floats(1e-3, 1e3),
    exponent=st.integers(-20, 30),
)
def test_no_row_moves_the_sum_by_more_than_the_clipping_norm(seed, rows, clip, exponent):
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(size=(rows, 7)) * 10.0**exponent).float()
    draw = torch.tensor(seed)
    for noise in (0.0, 0.5):
        privacy = Privacy(clip, noise)
        whole = privacy.release(values, draw)
        others = values.clone()
        others[0] = 0
        moved = torch.linalg.vector_norm((whole - privacy.release(others, draw)).double())
        room = 1e-5 * clip * (rows + 10 * noise)
        assert float(moved) <= clip + room


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_row_that_is_not_finite_counts_as_zero(bad):
    values = torch.ones(3, 4)
    values[1, 2] = bad
    released = Privacy(10.0).release(values, torch.tensor(0))
    assert released.tolist() == [2.0] * 4


def test_noise_is_normal_of_the_promised_size_and_its_own_for_every_draw():
    privacy = Privacy(clip=3.0, noise=0.5)
    zero = torch.zeros(1, 40_000)
    one, same, other = (privacy.release(zero, torch.tensor(k)) for k in (7, 7, 8))
    assert torch.equal(one, same)
    assert float(one.std()) == pytest.approx(1.5, rel=0.02)
    assert abs(float(one.mean())) < 0.03
    assert float((one.abs() > 1.5 * 1.96).double().mean()) == pytest.approx(0.05, abs=0.005)
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.02


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"clip": -1.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"noise": 1.0}, "give clip"),
        ({"clip": 1.0, "noise": -0.1}, "noise"),
        ({"clip": 1.0, "delta": 0.0}, "delta"),
        ({"clip": 1.0, "delta": 0.5}, "delta"),
    ],
)
def test_setting_out_of_range_is_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        Privacy(**settings)
