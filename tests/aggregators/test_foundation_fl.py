import numpy as np
from aggregating import aggregated, assert_close, crowds, everybody
from hypothesis import given
from reference import order_rules
from reference.foundation_fl import foundation_fl
from reference.krum import krum

from secureafl.aggregators import FoundationFl, Krum, TrimmedMean


@given(crowds())
def test_foundation_fl_over_the_median_equals_its_oracle(crowd):
    expected = foundation_fl(crowd.rows, order_rules.median)
    assert_close(aggregated(FoundationFl(), *crowd), expected, crowd)


@given(crowds())
def test_foundation_fl_over_the_trimmed_mean_equals_its_oracle(crowd):
    expected = foundation_fl(crowd.rows, lambda rows: order_rules.trimmed_mean(rows, 0.3))
    assert_close(aggregated(FoundationFl(TrimmedMean(0.3)), *crowd), expected, crowd)


@given(crowds(kinds=("plain", "ties")))
def test_foundation_fl_takes_any_rule(crowd):
    expected = foundation_fl(crowd.rows, lambda rows: krum(rows, 0.2))
    assert_close(aggregated(FoundationFl(Krum()), *crowd), expected, crowd)


def test_copies_of_the_most_central_client_win():
    # 4 is farthest from both ends; three copies of it outvote the rest.
    values = np.array([[0.0], [1.0], [1.5], [4.0], [9.5], [10.0]])
    assert aggregated(FoundationFl(), values, everybody(6)).item() == 4.0
