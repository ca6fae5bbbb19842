"""Min-Max and Min-Sum."""

import numpy as np
import pytest
import torch
from attacking import assert_close, crafted, crowds, lone, uploads_its_own
from hypothesis import assume, given
from reference import attacks_crafted as oracle

from secureafl.attacks import MinMax, MinSum
from secureafl.core.errors import ConfigError

KINDS = ("unit", "std", "sign")
ORACLES = {MinMax: oracle.min_max, MinSum: oracle.min_sum}
for_both = pytest.mark.parametrize("attack", [MinMax, MinSum])


@for_both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [1.0, 0.5])
@given(crowd=crowds())
def test_crafted_update_equals_its_oracle(attack, kind, strength, crowd):
    assume(len(crowd.honest))
    expected = ORACLES[attack](crowd.honest, kind, strength)
    # A bound squared loses half the digits of a distance.
    assert_close(crafted(attack(kind, strength), crowd), expected, crowd, tolerance=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(crowd=crowds())
def test_min_max_is_never_further_from_anybody_than_the_two_furthest(kind, dtype, crowd):
    assume(len(crowd.honest))
    honest = crowd.honest.astype(str(dtype).removeprefix("torch.")).astype(float)
    update = crafted(MinMax(kind), crowd, dtype).astype(float)
    apart = max(oracle.distance(one, other) for one in honest for other in honest)
    furthest = max(oracle.distance(update, one) for one in honest)
    slack = crowd.size * (1e-6 if dtype == torch.float32 else 1e-12)
    assert furthest <= apart + slack
    if oracle.perturbation(kind, honest).any():
        assert furthest >= apart * (1 - 1e-5) - slack  # and no less than it could be


@pytest.mark.parametrize("kind", KINDS)
@given(crowd=crowds())
def test_min_sum_is_never_further_from_all_than_the_most_remote(kind, crowd):
    assume(len(crowd.honest))
    update = crafted(MinSum(kind), crowd)

    def total(vector):
        return sum(oracle.distance(vector, one) ** 2 for one in crowd.honest)

    assert total(update) <= max(map(total, crowd.honest)) * (1 + 1e-9) + (1e-9 * crowd.size) ** 2


@for_both
@given(crowd=crowds())
def test_malicious_and_unknown_clients_do_not_count(attack, crowd):
    counts = crowd.known & ~crowd.malicious
    other = crowd._replace(gradients=np.where(counts[:, None], crowd.gradients, 1e6))
    assume(counts.any())
    assert np.array_equal(crafted(attack(), crowd), crafted(attack(), other))


@for_both
@pytest.mark.parametrize("kind", KINDS)
def test_of_one_honest_client_it_is_the_gradient(attack, kind):
    crowd = lone([[3.0, -1.0], [7.0, 7.0]], malicious=[1])
    assert crafted(attack(kind), crowd).tolist() == [3, -1]


@for_both
def test_two_honest_clients_are_pushed_back_along_their_mean(attack):
    # mu = (2, 0), both at 1 from it and at 2 from each other.
    crowd = lone([[2.0, 1.0], [2.0, -1.0]])
    gamma = {MinMax: np.sqrt(3), MinSum: 1}[attack]
    np.testing.assert_allclose(crafted(attack(), crowd), [2 - gamma, 0], atol=1e-12)


@for_both
def test_without_honest_clients_it_uploads_its_own_gradient(attack):
    assert uploads_its_own(attack(), lone([[1.0, 2.0, 3.0]], malicious=[0]))


@for_both
def test_zero_gradients_give_zero(attack):
    for kind in KINDS:
        assert not crafted(attack(kind), lone(np.zeros((3, 4)))).any()


@for_both
@pytest.mark.parametrize("strength", [0.0, -1.0, 1.1, float("nan")])
def test_strength_that_is_no_share_is_refused(attack, strength):
    with pytest.raises(ConfigError, match="strength"):
        attack(strength=strength)
