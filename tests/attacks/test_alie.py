"""ALIE and the inner product attack."""

import numpy as np
import pytest
import torch
from attacking import assert_close, crafted, crowds, lone, uploads_its_own
from hypothesis import assume, given
from reference import attacks_crafted as oracle

from secureafl.attacks import Alie, InnerProduct
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize("z", [0.0, 0.1, 1.5])
@given(crowd=crowds())
def test_alie_equals_its_oracle(z, crowd):
    assume(len(crowd.colluders))
    wanted = z or oracle.alie_deviations(len(crowd.known), int(crowd.malicious.sum()))
    assert_close(crafted(Alie(z), crowd), oracle.alie(crowd.colluders, wanted), crowd)


@pytest.mark.parametrize(
    ("clients", "malicious", "z"),
    # 16 of 40 honest clients are needed: the quantile of 0.6. Five clients need half of the four.
    [(50, 10, 0.2533), (50, 24, 1.4260), (5, 1, 0.0), (4, 3, 0.0), (10, 8, 0.0), (10, 6, 0.6745)],
)
def test_deviations_follow_from_the_numbers_of_clients(clients, malicious, z):
    gradients = np.tile([[1.0], [-1.0]], (clients, 1))[:clients]  # mean 0 and deviation 1
    bad = range(malicious - malicious % 2)
    crowd = lone(gradients, range(malicious))._replace(known=np.isin(np.arange(clients), bad))
    if malicious > 1:
        assert crafted(Alie(), crowd).item() == pytest.approx(-z, abs=1e-4)
    assert oracle.alie_deviations(clients, malicious) == pytest.approx(z, abs=1e-4)


@given(crowd=crowds())
def test_alie_does_not_look_at_honest_clients(crowd):
    seen = crowd.known & crowd.malicious
    other = crowd._replace(gradients=np.where(seen[:, None], crowd.gradients, 1e6))
    assert np.array_equal(crafted(Alie(1.0), crowd), crafted(Alie(1.0), other))


def test_alie_of_one_colluder_is_its_own_gradient():
    crowd = lone([[1.0, 2.0], [5.0, 6.0]], malicious=[1])
    assert crafted(Alie(2.0), crowd).tolist() == [5, 6]


@pytest.mark.parametrize("epsilon", [0.1, 5.0])
@given(crowd=crowds())
def test_inner_product_uploads_minus_epsilon_times_the_honest_mean(epsilon, crowd):
    assume(len(crowd.honest))
    expected = [-epsilon * sum(column) / len(column) for column in crowd.honest.T]
    assert_close(crafted(InnerProduct(epsilon), crowd), expected, crowd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("attack", [Alie(), Alie(1.5), InnerProduct()])
def test_large_gradients_stay_finite(attack, dtype):
    crowd = lone(1e25 * np.array([[1.0, -1.0], [2.0, 3.0], [-1.0, 1.0]]), malicious=[0, 2])
    assert np.isfinite(crafted(attack, crowd, dtype)).all()


def test_without_anybody_to_look_at_the_own_gradient_is_uploaded():
    everybody_bad, everybody_good = lone([[1.0, 2.0]], [0]), lone([[1.0, 2.0]])
    assert uploads_its_own(InnerProduct(), everybody_bad)
    assert uploads_its_own(Alie(), everybody_good)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Alie(z=-0.1),
        lambda: Alie(z=float("inf")),
        lambda: InnerProduct(epsilon=0.0),
        lambda: InnerProduct(epsilon=float("nan")),
    ],
)
def test_setting_out_of_range_is_refused(make):
    with pytest.raises(ConfigError):
        make()
