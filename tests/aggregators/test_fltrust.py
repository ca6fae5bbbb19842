import numpy as np
import pytest
import torch
from aggregating import aggregated, crowds, everybody
from hypothesis import given
from hypothesis import strategies as st
from reference.fltrust import fltrust

from secureafl.aggregators import Bucketing, FlTrust, Krum, NearestNeighbourMixing
from secureafl.core.errors import ConfigError
from secureafl.core.protocols import RootDataRule
from secureafl.core.traits import has_trait


@given(
    crowd=crowds(dims=(3, 8)), seed=st.integers(0, 999), size=st.sampled_from([0, 1e-20, 1, 1e9])
)
def test_fltrust_equals_its_oracle(crowd, seed, size):
    trusted = size * np.random.default_rng(seed).normal(size=crowd.values.shape[1])
    found = aggregated(FlTrust(), *crowd, root_data=trusted)
    expected = fltrust(crowd.rows, trusted)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * (size or 1))


def test_clients_that_point_away_have_no_say():
    trusted = np.array([1.0, 0.0])
    values = np.array([[2.0, 2.0], [-1e9, 0.0], [-5.0, 1.0]])
    found = aggregated(FlTrust(), values, everybody(3), root_data=trusted)
    np.testing.assert_allclose(found, [0.5**0.5, 0.5**0.5])


def test_nobody_trusted_means_no_step():
    found = aggregated(FlTrust(), -np.ones((4, 3)), everybody(4), root_data=np.ones(3))
    assert np.array_equal(found, np.zeros(3))


@given(exponents=st.lists(st.integers(-40, 20), min_size=2, max_size=6))
def test_result_is_finite_and_as_long_as_the_root_gradient_at_most(exponents):
    values = torch.tensor([[10.0**e, -(10.0**e) / 2] for e in exponents])
    for length in (1e-38, 1.0, 1e20):
        trusted = torch.tensor([length, 0.0])
        present = torch.ones(len(values), dtype=torch.bool)
        found, _ = FlTrust().aggregate_with_root((), values, present, trusted)
        assert torch.isfinite(found).all()
        assert torch.linalg.vector_norm(found.double()) <= length * (1 + 1e-5)


def test_without_trusted_samples_it_says_what_it_needs():
    with pytest.raises(ConfigError, match="fltrust: it needs root data"):
        aggregated(FlTrust(), np.ones((2, 2)), everybody(2))


def test_need_for_trusted_samples_shows_through_wrappers():
    assert isinstance(FlTrust(), RootDataRule)
    assert has_trait(FlTrust(), "needs_root_data")
    assert has_trait(Bucketing(NearestNeighbourMixing(FlTrust())), "needs_root_data")
    assert not has_trait(Bucketing(Krum()), "needs_root_data")
    assert not has_trait(Krum(), "needs_root_data")


def test_wrappers_pass_the_root_gradient_on():
    values, trusted = np.array([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]]), np.array([0.0, 2.0])
    expected = fltrust(values, trusted)
    for rule in (Bucketing(FlTrust()), NearestNeighbourMixing(FlTrust())):
        found = aggregated(rule, values, everybody(3), root_data=trusted)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ConfigError, match="clean samples"):
        aggregated(Bucketing(FlTrust()), values, everybody(3))
