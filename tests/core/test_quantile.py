import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.lipschitz_filter import LipschitzFilter

from secureafl.core.quantile import no_history, observe, quantile

CPU = torch.device("cpu")
LEVELS = (0.05, 0.5, 0.8, 0.9, 1.0)


def see(history, value, calls, counts=True):
    value = torch.tensor(value, dtype=torch.float64)
    return observe(history, value, torch.tensor(counts), calls)


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
def test_running_quantile_equals_numpy_after_every_value(level, window, stream):
    history, oracle = no_history(window, CPU), LipschitzFilter(level, window)
    assert float(quantile(history, level)) == np.inf
    for calls, (value, counts) in enumerate(stream):
        history = see(history, value, calls, counts)
        if counts:
            oracle.add(value)
        np.testing.assert_allclose(float(quantile(history, level)), oracle.threshold, rtol=1e-12)


@pytest.mark.parametrize("window", [0, 100, 2000])
def test_quantile_stays_exact_when_the_history_outgrows_its_first_capacity(window):
    values = np.random.default_rng(0).lognormal(size=2600)
    history, oracle = no_history(window, CPU), LipschitzFilter(0.8, window)
    for calls, value in enumerate(values):
        history = see(history, value, calls)
        oracle.add(value)
        if calls % 97 == 0 or calls in (1021, 1022, 1023, 1024, 2046, 2047, 2048):
            found = float(quantile(history, 0.8))
            np.testing.assert_allclose(found, oracle.threshold, rtol=1e-12)
    kept = values[-window:] if window else values
    ordered = history.ordered[torch.isfinite(history.ordered)].numpy()
    assert np.array_equal(ordered, np.sort(kept))


def test_rounds_without_a_value_never_cost_one():
    # Refused uploads count as rounds, so `calls` may run far ahead of the values.
    history, oracle = no_history(0, CPU), LipschitzFilter(0.8)
    for calls in [*range(1000), *range(5000, 5100)]:
        history = see(history, float(calls), calls)
        oracle.add(float(calls))
    assert int(history.count) == len(oracle.factors)
    np.testing.assert_allclose(float(quantile(history, 0.8)), oracle.threshold, rtol=1e-12)


@pytest.mark.parametrize("window", [0, 3])
def test_value_that_does_not_count_changes_nothing(window):
    history = no_history(window, CPU)
    for calls in range(5):
        history = see(history, float(calls), calls)
    after = see(history, 77.0, 5, counts=False)
    for old, new in zip(history, after, strict=True):
        assert torch.equal(old, new)


def test_values_are_kept_sorted():
    history = no_history(0, CPU)
    for calls, value in enumerate([3.0, 1.0, 2.0, 2.0]):
        history = see(history, value, calls)
    assert history.ordered[:5].tolist() == [1.0, 2.0, 2.0, 3.0, np.inf]
