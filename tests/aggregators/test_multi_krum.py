import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference.multi_krum import multi_krum

from secureafl.aggregators import MultiKrum
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4, 0.49])
@given(crowd=crowds())
def test_multi_krum_equals_its_oracle(share, crowd):
    found = aggregated(MultiKrum(share), *crowd)
    assert_close(found, multi_krum(crowd.rows, share), crowd)


def test_everybody_but_the_outliers_is_averaged():
    values = with_outliers(honest=16, outliers=4)
    found = aggregated(MultiKrum(0.2), values, everybody(20))
    np.testing.assert_allclose(found, values[:16].mean(axis=0), rtol=1e-12)


def test_nobody_suspected_is_the_mean():
    values = with_outliers(distance=2.0)
    found = aggregated(MultiKrum(0.0), values, everybody(20))
    np.testing.assert_allclose(found, values.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("share", [-0.1, 0.5])
def test_share_that_is_no_minority_is_refused(share):
    with pytest.raises(ConfigError, match="share"):
        MultiKrum(share)
