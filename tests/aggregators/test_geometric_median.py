import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from hypothesis import strategies as st
from reference.geometric_median import geometric_median, total_distance

from secureafl.aggregators import GeometricMedian
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize(("iterations", "smoothing"), [(1, 1e-6), (8, 1e-6), (8, 0.5)])
@given(crowd=crowds())
def test_geometric_median_equals_its_oracle(iterations, smoothing, crowd):
    found = aggregated(GeometricMedian(iterations, smoothing), *crowd)
    assert_close(found, geometric_median(crowd.rows, iterations, smoothing), crowd, 1e-7)


@given(crowd=crowds(dims=(2, 3, 8), kinds=("plain", "ties")), seed=st.integers(0, 999))
def test_no_point_near_by_has_a_smaller_sum_of_distances(crowd, seed):
    found = aggregated(GeometricMedian(200), *crowd)
    least = total_distance(crowd.rows, found)
    for step in np.random.default_rng(seed).normal(size=(20, found.size)) * 0.05:
        assert total_distance(crowd.rows, found + step) > least * (1 - 1e-4)


def test_majority_that_agrees_gets_its_way():
    values = np.concatenate([np.ones((6, 3)), 1e15 * np.ones((5, 3))])
    found = aggregated(GeometricMedian(), values, everybody(11))
    np.testing.assert_allclose(found, np.ones(3), rtol=1e-5)


def test_outliers_pull_no_harder_from_farther_away():
    near, far = (
        aggregated(GeometricMedian(), with_outliers(distance=distance), everybody(20))
        for distance in (1e2, 1e18)
    )
    np.testing.assert_allclose(near, far, atol=0.05)


@pytest.mark.parametrize("settings", [{"iterations": 0}, {"smoothing": 0.0}, {"smoothing": np.inf}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        GeometricMedian(**settings)
