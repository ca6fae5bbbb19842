"""A client with k samples counts like k clients that agree: repeated rows are the oracle."""

import numpy as np
import pytest
import torch
from contract.cases import DEFENSE_CASES, SLOW_CASES
from hypothesis import given
from hypothesis import strategies as st

from secureafl.aggregators import AGGREGATORS, GeometricMedian, Mean, Median, TrimmedMean
from secureafl.core.errors import ConfigError
from secureafl.core.protocols import WeightedRule
from secureafl.core.server import Server
from secureafl.defenses import AsyncSgd, FedBuff, SecureAfl
from secureafl.testing.driver import Driver

WEIGHTED = {
    "mean": Mean(),
    "median": Median(),
    "trimmed_mean": TrimmedMean(),
    "trimmed_hard": TrimmedMean(0.45),
    "geometric_median": GeometricMedian(),
}
for_every_rule = pytest.mark.parametrize("rule", WEIGHTED.values(), ids=WEIGHTED)

cases = st.tuples(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=9),
    st.integers(0, 2**32 - 1),
)


def drawn(case, dtype=torch.float64):
    clients, seed = case
    samples, present = zip(*clients, strict=True)
    present = torch.tensor(present)
    present[0] = True
    rng = np.random.default_rng(seed)
    # Few different numbers, so that clients tie.
    values = torch.from_numpy(rng.integers(-4, 5, (len(samples), 6)) / 2).to(dtype)
    values[~present] = 1e30
    return values, present, torch.tensor(samples, dtype=torch.float64)


def ordered_oracle(rule, rows):
    """Of rows that all count the same."""
    rows = np.sort(rows, axis=0)
    if isinstance(rule, Median):
        return np.median(rows, axis=0)
    return rows.mean(axis=0)


@for_every_rule
@given(case=cases)
def test_client_counts_like_as_many_as_it_has_samples(rule, case):
    values, present, samples = drawn(case)
    found, _ = rule.aggregate_weighted((), values, present, samples)
    rows, held, count = values[present], samples[present].long(), int(present.sum())
    if isinstance(rule, TrimmedMean):
        dropped = min(int(np.ceil(rule.share * count - 1e-9)), (count - 1) // 2)
        # So often that what is cut off is a whole number of rows.
        repeated = np.sort(rows.repeat_interleave(held * count, dim=0).numpy(), axis=0)
        cut = dropped * int(held.sum())
        expected = repeated[cut : len(repeated) - cut].mean(axis=0)
    elif isinstance(rule, GeometricMedian):
        more = rows.repeat_interleave(held, dim=0)
        expected, _ = rule.aggregate((), more, torch.ones(len(more), dtype=torch.bool))
    else:
        expected = ordered_oracle(rule, rows.repeat_interleave(held, dim=0).numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@for_every_rule
@given(case=cases, each=st.sampled_from([1.0, 3.0, 600.0]))
def test_equal_samples_are_no_weights(rule, case, each):
    values, present, samples = drawn(case, torch.float32)
    found, _ = rule.aggregate_weighted((), values, present, torch.full_like(samples, each))
    expected, _ = rule.aggregate((), values, present)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == torch.float32


@for_every_rule
def test_nobody_present_gives_zero_and_no_number_is_looked_at(rule):
    values = torch.full((3, 4), 2.0)
    nobody, samples = torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.float64)
    found, _ = rule.aggregate_weighted((), values, nobody, samples)
    assert not found.any()
    meta = [tensor.to("meta") for tensor in (values, nobody, samples)]
    assert rule.aggregate_weighted((), *meta)[0].shape == (4,)


def test_median_of_many_coordinates_is_that_of_each():
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.normal(size=(7, (1 << 14) + 5)))
    everybody, samples = torch.ones(7, dtype=torch.bool), torch.arange(1.0, 8).double()
    found, _ = Median().aggregate_weighted((), values, everybody, samples)
    expected = values.repeat_interleave(samples.long(), dim=0).quantile(0.5, dim=0)
    torch.testing.assert_close(found, expected)


def driver_with(defense, samples):
    driver = Driver(defense)
    server = driver.server._replace(samples=torch.tensor(samples, dtype=torch.float64))
    driver.server, driver.state = server, server.start(driver.state.weights)
    return driver


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW_CASES else ()) for n in DEFENSE_CASES],
)
def test_defence_weighs_or_is_refused_with_the_remedy(name):
    defense = DEFENSE_CASES[name]
    if getattr(defense, "weighs", False):
        plain, equal = Driver(defense), driver_with(defense, [40] * 5)
        unlike = driver_with(defense, [1, 2, 300, 4, 5])
        for number in range(25):
            for driver in (plain, equal, unlike):
                driver.honest(number)
        torch.testing.assert_close(plain.state.weights, equal.state.weights)
        assert not torch.allclose(plain.state.weights, unlike.state.weights, rtol=1e-3)
        assert torch.isfinite(unlike.state.weights).all()
    else:
        with pytest.raises(ConfigError, match=r"cannot weigh its clients; use async_sgd"):
            driver_with(defense, [40] * 5)


def test_rules_that_weigh_are_the_ones_the_error_names():
    weighing = {kind for kind, cls in AGGREGATORS.items() if isinstance(cls(), WeightedRule)}
    assert weighing == {"mean", "median", "trimmed_mean", "geometric_median"}
    with pytest.raises(ConfigError) as told:
        Server(SecureAfl(aggregator=AGGREGATORS["krum"]()), 2, 0.1, None, torch.ones(2)).start(
            torch.zeros(3)
        )
    assert all(kind in str(told.value) for kind in weighing)


@pytest.mark.parametrize("defense", [AsyncSgd(), SecureAfl(estimate=False), FedBuff(1)])
def test_upload_that_is_applied_alone_is_scaled_by_its_share_of_the_samples(defense):
    driver = driver_with(defense, [1, 1, 10, 4, 4])
    update = torch.arange(7.0)
    decision = driver.receive(2, 0, update, driver.state.weights)
    torch.testing.assert_close(decision.direction, 2.5 * update)  # 10 of 20, one client of 5
