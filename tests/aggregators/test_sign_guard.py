import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference.sign_guard import sign_guard, sign_shares

from secureafl.aggregators import SignGuard
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize("sampled", [0.1, 1.0])
@given(crowd=crowds(dims=(1, 8, 40)))
def test_sign_guard_equals_its_oracle(sampled, crowd):
    found = aggregated(SignGuard(sampled=sampled), *crowd)
    assert_close(found, sign_guard(crowd.rows, 0, share=sampled), crowd)


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_every_call_looks_at_other_coordinates(calls):
    values = with_outliers(size=300, distance=0.3)
    found = aggregated(SignGuard(), values, everybody(20), calls=calls)
    np.testing.assert_allclose(found, sign_guard(values, calls - 1), rtol=1e-9)
    assert not np.array_equal(sign_shares(values, calls - 1, 0.1), sign_shares(values, calls, 0.1))


def test_flipped_signs_of_usual_length_are_left_out():
    rng = np.random.default_rng(0)
    honest = np.abs(rng.normal(size=(12, 200))) * np.where(rng.random((12, 200)) < 0.8, 1, -1)
    values = np.concatenate([honest, -honest[:4]])
    found = aggregated(SignGuard(), values, everybody(16))
    lengths = np.linalg.norm(values, axis=1)
    clipped = honest * np.minimum(1, np.median(lengths) / lengths[:12])[:, None]
    np.testing.assert_allclose(found, clipped.mean(axis=0), rtol=1e-9)


def test_unusual_lengths_are_left_out():
    values = np.ones((7, 4))
    values[0] *= 1e12
    values[1] *= 1e-3
    np.testing.assert_allclose(aggregated(SignGuard(), values, everybody(7)), np.ones(4))


def test_length_decides_where_nobody_passes_both_tests():
    # The largest cluster is the four zeros, and they are too short; the others are clipped to 1.
    values = np.array([0, 0, 0, 0, 1, 1.1, 1.2, -1, -1.1])[:, None]
    found = aggregated(SignGuard(), values, everybody(9))
    np.testing.assert_allclose(found, [(3 - 2) / 5])


@pytest.mark.parametrize("settings", [{"shortest": 1.0}, {"longest": 2.0}, {"sampled": 0.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SignGuard(**settings)
