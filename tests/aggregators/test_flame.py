import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference.flame import flame

from secureafl.aggregators import Flame
from secureafl.core.errors import ConfigError


@given(crowds())
def test_flame_without_noise_equals_its_oracle(crowd):
    assert_close(aggregated(Flame(noise=0.0), *crowd), flame(crowd.rows), crowd)


def test_who_points_elsewhere_is_left_out_and_the_rest_clipped():
    values = with_outliers(honest=11, outliers=9, size=100, distance=1.0)
    values[0] *= 1e6
    found = aggregated(Flame(noise=0.0), values, everybody(20))
    lengths = np.linalg.norm(values, axis=1)
    clipped = values * np.minimum(1, np.median(lengths) / lengths)[:, None]
    np.testing.assert_allclose(found, clipped[:11].mean(axis=0), rtol=1e-9)


def test_noise_has_the_wanted_size_and_is_new_at_each_call():
    values = np.ones((3, 20_000)) * 0.5
    length = np.linalg.norm(values[0])
    one, other = (
        aggregated(Flame(noise=0.01), values, everybody(3), calls=calls) - values[0]
        for calls in (1, 2)
    )
    for noise in (one, other):
        assert abs(noise.std() / (0.01 * length) - 1) < 0.03
        assert abs(noise.mean()) < 0.04 * 0.01 * length
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_noise_is_the_same_in_every_run():
    one, other = (aggregated(Flame(), with_outliers(), everybody(20)) for _ in range(2))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("noise", [-0.1, float("inf")])
def test_noise_out_of_range_is_refused(noise):
    with pytest.raises(ConfigError, match="noise"):
        Flame(noise)
