from collections import Counter

import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference import order_rules
from reference.bucketing import groups
from reference.krum import krum
from reference.splitmix import permutation

from secureafl.aggregators import Bucketing, Krum, Mean, Median
from secureafl.core.errors import ConfigError
from secureafl.experiment import from_mapping


@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize("calls", [1, 3])
@given(crowd=crowds())
def test_bucketing_equals_its_oracle(size, calls, crowd):
    found = aggregated(Bucketing(Median(), size), *crowd, calls=calls)
    means = np.array(groups(*crowd, calls - 1, size))
    assert_close(found, order_rules.median(means), crowd)


@given(crowd=crowds(kinds=("plain", "huge")))
def test_bucketing_around_krum_equals_both_oracles(crowd):
    found = aggregated(Bucketing(Krum(0.4)), *crowd)
    assert_close(found, krum(np.array(groups(*crowd, 0, 2)), 0.4), crowd)


def test_every_client_counts_once():
    values = with_outliers()
    found = aggregated(Bucketing(Mean(), 4), values, everybody(20))
    np.testing.assert_allclose(found, values.mean(axis=0), rtol=1e-12)


def test_partners_change_from_call_to_call_and_all_are_equally_likely():
    pairs = Counter()
    for draw in range(3000):
        order = permutation(draw, everybody(4))
        pairs[frozenset(order[:2])] += 1
    assert len(pairs) == 6
    assert all(abs(count - 500) < 100 for count in pairs.values())


def test_inner_rule_is_named_in_a_settings_file():
    inner = {"kind": "bucketing", "size": 3, "inner": {"kind": "krum", "share": 0.3}}
    given_in = {
        "defense": {"kind": "secure_afl", "aggregator": {"kind": "bucketing", "inner": inner}}
    }
    assert from_mapping(given_in).defense.aggregator == Bucketing(Bucketing(Krum(0.3), 3))
    short = {
        "defense": {"kind": "secure_afl", "aggregator": {"kind": "bucketing", "inner": "krum"}}
    }
    assert from_mapping(short).defense.aggregator == Bucketing(Krum())


def test_misspelt_inner_rule_is_refused_with_a_suggestion():
    given_in = {
        "defense": {"kind": "secure_afl", "aggregator": {"kind": "bucketing", "inner": "krumm"}}
    }
    with pytest.raises(ConfigError, match=r"defense\.aggregator\.inner.*did you mean 'krum'"):
        from_mapping(given_in)


def test_empty_groups_are_refused():
    with pytest.raises(ConfigError, match="size"):
        Bucketing(size=0)
