import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference import krum, order_rules
from reference.nearest_neighbour_mixing import mixed
from reference.share import assumed_malicious

from secureafl.aggregators import Krum, Mean, Median, NearestNeighbourMixing
from secureafl.core.errors import ConfigError
from secureafl.experiment import from_mapping


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4, 0.49])
@given(crowd=crowds())
def test_mixing_before_the_median_equals_its_oracle(share, crowd):
    found = aggregated(NearestNeighbourMixing(Median(), share), *crowd)
    assert_close(found, order_rules.median(mixed(crowd.rows, share)), crowd)


@given(crowd=crowds(kinds=("plain", "huge")))
def test_mixing_before_krum_equals_both_oracles(crowd):
    found = aggregated(NearestNeighbourMixing(Krum(0.1), 0.3), *crowd)
    # Rows mixed of the same clients are equal up to rounding, and so are their scores.
    rows = mixed(crowd.rows, 0.3)
    scores = np.array(krum.scores(rows, assumed_malicious(len(rows), 0.1)))
    best = rows[scores <= scores.min() + 1e-9 * crowd.size**2]
    assert np.isclose(best, found, rtol=1e-9, atol=1e-9 * crowd.size).all(axis=1).any()


def test_honest_rows_take_nothing_from_far_outliers():
    values = with_outliers(honest=16, outliers=4, distance=1e18)
    found = aggregated(NearestNeighbourMixing(Median(), 0.2), values, everybody(20))
    np.testing.assert_allclose(found, values[:16].mean(axis=0), rtol=1e-9)


def test_nobody_suspected_mixes_all_with_all():
    values = with_outliers(distance=2.0)
    found = aggregated(NearestNeighbourMixing(Mean(), 0.0), values, everybody(20))
    np.testing.assert_allclose(found, values.mean(axis=0), rtol=1e-12)


def test_inner_rule_is_named_in_a_settings_file():
    rule = {"kind": "nearest_neighbour_mixing", "share": 0.3, "inner": "krum"}
    found = from_mapping({"defense": {"kind": "secure_afl", "aggregator": rule}}).defense.aggregator
    assert found == NearestNeighbourMixing(Krum(), 0.3)


@pytest.mark.parametrize("share", [-0.1, 0.5])
def test_share_that_is_no_minority_is_refused(share):
    with pytest.raises(ConfigError, match="share"):
        NearestNeighbourMixing(share=share)
