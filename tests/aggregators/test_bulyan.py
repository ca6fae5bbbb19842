import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference.bulyan import bulyan

from secureafl.aggregators import Bulyan
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
@given(crowd=crowds())
def test_bulyan_equals_its_oracle(share, crowd):
    found = aggregated(Bulyan(share), *crowd)
    assert_close(found, bulyan(crowd.rows, share), crowd)


def test_committee_is_chosen_one_by_one_and_its_middle_averaged():
    # n = 11, f = 2: a committee of 7 without the two far ones, then 3 values around its median.
    values = np.array([*np.arange(9.0) ** 1.5, 1e6, 1e6])[:, None]
    expected = bulyan(values, 0.18)
    found = aggregated(Bulyan(0.18), values, everybody(11))
    assert 0 < found.item() < 23
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_error_hidden_in_one_coordinate_is_cut_off():
    # The distance of the attackers is modest in all, but sits in one coordinate only.
    values = with_outliers(outliers=0, honest=20, size=400)
    values[:3, 7] += 5.0
    found = aggregated(Bulyan(0.15), values, everybody(20))
    assert abs(found[7] - values[3:, 7].mean()) < 0.5


def test_fewer_clients_than_the_proof_wants_still_drop_an_outlier():
    found = aggregated(Bulyan(0.2), [[1.0], [1.1], [1.2], [1.3], [1e9]], everybody(5))
    assert 1.0 <= found.item() <= 1.3


@pytest.mark.parametrize("share", [-0.1, 0.5])
def test_share_that_is_no_minority_is_refused(share):
    with pytest.raises(ConfigError, match="share"):
        Bulyan(share)
