import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.lipschitz_filter import LipschitzFilter

from secureafl.linalg.quantile import (
    LONGEST,
    no_history,
    observe,
    observe_reference,
    passing_bound,
    quantile,
    quantile_reference,
)

CPU = torch.device("cpu")
LEVELS = (0.05, 0.5, 0.8, 0.9, 1.0)
VERSIONS = {"cpu": (observe, quantile), "reference": (observe_reference, quantile_reference)}
for_both = pytest.mark.parametrize(("add", "read"), VERSIONS.values(), ids=VERSIONS.keys())


def see(add, history, value, counts=True):
    return add(history, torch.tensor(value, dtype=torch.float64), torch.tensor(counts))


@for_both
@pytest.mark.parametrize("level", LEVELS)
@given(
    window=st.integers(0, 6),
    stream=st.lists(
        st.tuples(
            st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0, 1e57, allow_subnormal=False)),
            st.booleans(),
        ),
        max_size=30,
    ),
)
def test_running_quantile_equals_numpy_after_every_value(add, read, level, window, stream):
    history, oracle = no_history(window, CPU), LipschitzFilter(level, window)
    assert float(read(history, level)) == np.inf
    for value, counts in stream:
        history = see(add, history, value, counts)
        if counts:
            oracle.add(value)
        found = read(history, level)
        assert found.dtype == torch.float64
        assert found.shape == ()
        np.testing.assert_allclose(float(found), oracle.threshold, rtol=1e-12)


@for_both
@pytest.mark.parametrize("window", [0, pytest.param(100, marks=pytest.mark.slow), 2000])
def test_quantile_stays_exact_over_a_long_stream(add, read, window):
    values = np.random.default_rng(0).lognormal(size=2600)
    history, oracle = no_history(window, CPU), LipschitzFilter(0.8, window)
    for number, value in enumerate(values):
        history = see(add, history, value)
        oracle.add(value)
        if number % 97 == 0:
            found = float(read(history, 0.8))
            np.testing.assert_allclose(found, oracle.threshold, rtol=1e-12)
    kept = values[-window:] if window else values
    ordered = history.ordered[torch.isfinite(history.ordered)].numpy()
    assert np.array_equal(ordered, np.sort(kept))


@pytest.mark.slow
def test_without_a_window_the_longest_history_is_kept():
    values = np.random.default_rng(1).lognormal(size=LONGEST + 500)
    history = no_history(0, CPU)
    for value in values:
        history = see(observe, history, value)
    expected = np.quantile(values[-LONGEST:], 0.8)
    for read in (quantile, quantile_reference):
        np.testing.assert_allclose(float(read(history, 0.8)), expected, rtol=1e-12)


@for_both
@pytest.mark.parametrize("window", [0, 3])
def test_value_that_does_not_count_changes_nothing(add, read, window):
    history = no_history(window, CPU)
    for number in range(5):
        history = see(add, history, float(number))
    before, level = [tensor.clone() for tensor in history], float(read(history, 0.8))
    after = see(add, history, 77.0, counts=False)
    assert float(read(after, 0.8)) == level
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)


@for_both
def test_values_are_kept_sorted(add, read):
    history = no_history(0, CPU)
    for value in [3.0, 1.0, 2.0, 2.0]:
        history = see(add, history, value)
    assert history.ordered[:5].tolist() == [1.0, 2.0, 2.0, 3.0, np.inf]
    assert [float(read(history, level)) for level in (0.5, 1.0)] == [2.0, 3.0]


@pytest.mark.parametrize("window", [1, 4, 0])
def test_both_versions_keep_the_same_history_bit_for_bit(window):
    rng = np.random.default_rng(window)
    values = np.where(rng.random(60) < 0.3, 1.0, rng.lognormal(size=60))  # some of them tied
    one, other = no_history(window, CPU), no_history(window, CPU)
    for value, counts in zip(values, rng.random(60) < 0.8, strict=True):
        one, other = (
            see(add, history, value, counts)
            for add, history in ((observe, one), (observe_reference, other))
        )
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for level in LEVELS:
            assert torch.equal(quantile(one, level), quantile_reference(other, level))


@for_both
def test_reading_a_quantile_changes_nothing(add, read):
    history = see(add, see(add, no_history(3, CPU), 2.0), 1.0)
    before = [tensor.clone() for tensor in history]
    found = read(history, 0.5)
    found.zero_()
    assert all(torch.equal(a, b) for a, b in zip(history, before, strict=True))


def test_without_values_to_look_at_the_reference_version_runs():
    # As on a GPU, where a step is recorded before it runs: reading a "meta" tensor raises.
    meta = torch.device("meta")
    value, counts = torch.zeros((), dtype=torch.float64, device=meta), torch.ones((), device=meta)
    history = observe(no_history(3, meta), value, counts > 0)
    assert history.ordered.shape == (4,)
    assert quantile(history, 0.8).device == meta


@pytest.mark.parametrize("level", LEVELS)
@given(
    window=st.integers(0, 6),
    values=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 4.0]), max_size=12),
    new=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25, 2.0, 4.0, 9.0]),
)
def test_value_passes_the_quantile_it_joins_up_to_the_bound(level, window, values, new):
    history = no_history(window, CPU)
    for value in values:
        history = see(observe, history, value)
    bound = float(passing_bound(history, level))
    after = see(observe, history, new)
    assert (new <= float(quantile(after, level))) == (new <= bound)
