import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.lipschitz_filter import LipschitzFilter

from secureafl.core.quantile import LONGEST, no_history, observe, observe_reference, quantile

CPU = torch.device("cpu")
LEVELS = (0.05, 0.5, 0.8, 0.9, 1.0)


for_both = pytest.mark.parametrize("add", [observe, observe_reference])


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
def test_running_quantile_equals_numpy_after_every_value(add, level, window, stream):
    history, oracle = no_history(window, CPU), LipschitzFilter(level, window)
    assert float(quantile(history, level)) == np.inf
    for value, counts in stream:
        history = see(add, history, value, counts)
        if counts:
            oracle.add(value)
        np.testing.assert_allclose(float(quantile(history, level)), oracle.threshold, rtol=1e-12)


@for_both
@pytest.mark.parametrize("window", [0, 100, 2000])
def test_quantile_stays_exact_over_a_long_stream(add, window):
    values = np.random.default_rng(0).lognormal(size=2600)
    history, oracle = no_history(window, CPU), LipschitzFilter(0.8, window)
    for number, value in enumerate(values):
        history = see(add, history, value)
        oracle.add(value)
        if number % 97 == 0:
            found = float(quantile(history, 0.8))
            np.testing.assert_allclose(found, oracle.threshold, rtol=1e-12)
    kept = values[-window:] if window else values
    ordered = history.ordered[torch.isfinite(history.ordered)].numpy()
    assert np.array_equal(ordered, np.sort(kept))


def test_without_a_window_the_longest_history_is_kept():
    values = np.random.default_rng(1).lognormal(size=LONGEST + 500)
    history = no_history(0, CPU)
    for value in values:
        history = see(observe, history, value)
    expected = np.quantile(values[-LONGEST:], 0.8)
    np.testing.assert_allclose(float(quantile(history, 0.8)), expected, rtol=1e-12)


@for_both
@pytest.mark.parametrize("window", [0, 3])
def test_value_that_does_not_count_changes_nothing(add, window):
    history = no_history(window, CPU)
    for number in range(5):
        history = see(add, history, float(number))
    before = [tensor.clone() for tensor in history]
    after = see(add, history, 77.0, counts=False)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)


@for_both
def test_values_are_kept_sorted(add):
    history = no_history(0, CPU)
    for value in [3.0, 1.0, 2.0, 2.0]:
        history = see(add, history, value)
    assert history.ordered[:5].tolist() == [1.0, 2.0, 2.0, 3.0, np.inf]
