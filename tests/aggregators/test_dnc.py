import numpy as np
import pytest
import torch
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import dnc as oracle
from reference.share import assumed_malicious

from secureafl.aggregators import Dnc
from secureafl.aggregators.dnc import sampled_columns
from secureafl.core.errors import ConfigError


def clear_cut(rows, share, draws, sampled):
    """Whether one direction stands out, and a gap between who stays and who goes."""
    dropped = assumed_malicious(len(rows), share)
    for draw in draws:
        chosen = oracle.columns(draw, rows.shape[1], min(sampled, rows.shape[1]))
        scores, values = oracle.projections(rows[:, chosen])
        ordered = np.sort(scores)
        if len(values) > 1 and values[1] > 0.99 * values[0]:
            return False
        if dropped and ordered[-dropped] - ordered[-dropped - 1] < 1e-6 * ordered[-1]:
            return False
    return True


@pytest.mark.parametrize("iterations", [1, 3])
@given(
    crowd=crowds(dims=(3, 8, 40), kinds=("plain", "huge", "tiny")),
    share=st.sampled_from([0.0, 0.1, 0.2, 0.4]),
    sampled=st.sampled_from([1, 5, 10_000]),
)
def test_dnc_equals_its_oracle(iterations, crowd, share, sampled):
    draws = range(iterations)
    assume(clear_cut(crowd.rows, share, draws, sampled))
    found = aggregated(Dnc(share, 1.0, iterations, sampled), *crowd)
    assert_close(found, oracle.dnc(crowd.rows, share, draws, sampled), crowd)


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_every_call_looks_at_other_coordinates(calls):
    values = with_outliers(size=200, distance=0.5)
    found = aggregated(Dnc(sampled=9), values, everybody(20), calls=calls)
    expected = oracle.dnc(values, 0.2, [calls - 1], 9)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_colluders_are_left_out():
    values = with_outliers(distance=3.0)
    found = aggregated(Dnc(), values, everybody(20))
    np.testing.assert_allclose(found, values[:16].mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize(("removed", "left"), [(0.5, 18), (1.0, 16), (1.5, 14), (100.0, 1)])
def test_factor_says_how_many_are_left_out(removed, left):
    values = np.arange(20.0)[:, None] ** 3
    found = aggregated(Dnc(0.2, removed), values, everybody(20))
    np.testing.assert_allclose(found, oracle.dnc(values, 0.2, [0], 1, removed), rtol=1e-9)
    scores, _ = oracle.projections(values)
    np.testing.assert_allclose(found, values[np.argsort(scores)[:left]].mean(axis=0))


def test_draws_that_leave_nobody_let_the_last_one_decide():
    values = np.eye(3) * [5.0, 6.0, 7.0]
    draws = range(40)
    found = aggregated(Dnc(0.4, 1.0, 40, 1), values, everybody(3))
    np.testing.assert_allclose(found, oracle.dnc(values, 0.4, draws, 1))
    kept = [
        set(np.argsort(oracle.projections(values[:, oracle.columns(d, 3, 1)])[0])[:2])
        for d in draws
    ]
    assert not set.intersection(*kept), "the case is of use only if nobody survives all draws"


@pytest.mark.parametrize(("total", "wanted"), [(1, 1), (10, 10), (100, 7), (139_960, 10_000)])
def test_columns_are_distinct_and_spread_over_all(total, wanted):
    columns = sampled_columns(torch.tensor(3), total, wanted).tolist()
    assert columns == oracle.columns(3, total, wanted)
    assert len(set(columns)) == wanted
    assert all(k * total // wanted <= c < (k + 1) * total // wanted for k, c in enumerate(columns))


@pytest.mark.parametrize(
    "settings",
    [{"share": 0.5}, {"removed": 0.0}, {"removed": np.inf}, {"iterations": 0}, {"sampled": 0}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Dnc(**settings)
