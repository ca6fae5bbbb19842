import sys

import numpy as np
import pytest
import torch
from aggregating import aggregated, assert_close, crowds, everybody
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import rflbat as oracle

from secureafl.aggregators import Bucketing, Rflbat, clustering
from secureafl.core.errors import ConfigError
from secureafl.core.traits import has_trait


def blobs(rng, sizes, size=6):
    """Groups of clients far from each other, the nearer to zero the less alike in direction."""
    middles = np.diag([200.0, 30.0, 15.0, 0, 0, 0])[: len(sizes)]
    parts = [m + rng.normal(size=(number, size)) for m, number in zip(middles, sizes, strict=True)]
    return rng.permutation(np.concatenate(parts))


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(8, 12), min_size=2, max_size=3),
    absent=st.booleans(),
)
@settings(max_examples=settings().max_examples // 4)
def test_rflbat_equals_its_oracle_where_clusters_are_clear(seed, sizes, absent):
    rng = np.random.default_rng(seed)
    rows = blobs(rng, sizes)
    expected, clear = oracle.rflbat(rows, rng)
    assume(clear)
    values = np.insert(rows, [0, 3], 1e30, axis=0) if absent else rows
    found = aggregated(Rflbat(), values, values[:, 0] < 1e29)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_cluster_that_points_least_alike_is_kept():
    rng = np.random.default_rng(0)
    honest = np.array([10.0, 0, 0, 0]) + 2 * rng.normal(size=(14, 4))
    colluders = np.array([-10.0, 5, 0, 0]) + 0.01 * rng.normal(size=(6, 4))
    values = np.concatenate([honest, colluders])
    found = aggregated(Rflbat(), values, everybody(20))
    assert np.linalg.norm(found - honest.mean(axis=0)) < 1.5


def test_lone_client_far_away_is_left_out():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=(30, 5)), np.full((1, 5), 1e6)])
    found = aggregated(Rflbat(), values, everybody(31))
    assert np.linalg.norm(found) < 3


@given(crowds())
def test_result_is_a_mean_of_rows_present(crowd):
    found = aggregated(Rflbat(), *crowd)
    low, high = crowd.rows.min(axis=0), crowd.rows.max(axis=0)
    slack = 1e-9 * crowd.size
    assert ((low - slack <= found) & (found <= high + slack)).all()


@given(crowds(most=2))
def test_one_or_two_clients_are_averaged(crowd):
    assert_close(aggregated(Rflbat(), *crowd), crowd.rows.mean(axis=0), crowd)


def test_missing_scikit_learn_is_reported_before_the_first_call(monkeypatch):
    clustering.scikit_learn.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ConfigError, match=r'pip install "secureafl\[cluster\]"'):
        Rflbat().init(3, torch.zeros(2))


def test_rule_says_that_it_looks_at_numbers():
    assert has_trait(Rflbat(), "on_host")
    assert has_trait(Bucketing(Rflbat()), "on_host")
    assert not has_trait(Bucketing(), "on_host")


@pytest.mark.parametrize(
    "settings", [{"first_cut": 0.5}, {"second_cut": 0.0}, {"first_cut": np.inf}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Rflbat(**settings)
