import numpy as np
import pytest
import torch
from defending import DIM, SideBySide, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.async_filter import AsyncFilterServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import AsyncFilter

ONE = np.ones(DIM)


def side_by_side(buffer_size=6, max_lag=10):
    oracle = AsyncFilterServer(buffer_size, max_lag)
    return SideBySide(AsyncFilter(buffer_size, max_lag), 5, oracle)


@given(
    stream=streams(5, min_size=12, max_size=80),
    buffer_size=st.integers(1, 12),
    max_lag=st.integers(0, 3),
)
def test_streams_agree_with_the_oracle(stream, buffer_size, max_lag):
    side_by_side(buffer_size, max_lag).play(stream)


@pytest.mark.parametrize(("clients", "size"), [(100, 40), (50, 20), (20, 8), (5, 3), (1, 3)])
def test_buffer_holds_two_fifths_of_the_clients(clients, size):
    assert len(AsyncFilter().init(clients, torch.zeros(2)).buffer) == size


def fill(both, values, lags=None):
    lags = lags or [0] * len(values)
    pairs = enumerate(zip(values, lags, strict=True))
    return [both.arrive(k % 5, lag, np.full(DIM, x)) for k, (x, lag) in pairs][-1]


def test_farthest_cluster_is_left_out_and_the_others_are_averaged():
    decision = fill(side_by_side(), [1.0, 1.1, 0.9, 1.3, -9.0, -9.1])
    assert decision.ready
    assert float(decision.scores["rejected"]) == 2
    np.testing.assert_allclose(decision.direction.numpy(), 4.3 / 4, rtol=1e-12)


def test_uploads_that_all_agree_are_all_kept():
    decision = fill(side_by_side(), [2.0] * 6)
    assert float(decision.scores["rejected"]) == 0
    np.testing.assert_allclose(decision.direction.numpy(), 2, rtol=1e-12)


def test_fewer_than_three_uploads_on_a_model_pass_unjudged():
    both = side_by_side(buffer_size=2)
    decision = fill(both, [1.0, -1e6])
    assert float(decision.scores["rejected"]) == 0
    np.testing.assert_allclose(decision.direction.numpy(), (1 - 1e6) / 2, rtol=1e-12)


def test_uploads_are_compared_with_those_on_the_same_model():
    both = side_by_side(buffer_size=6)
    fill(both, [5.0, 5.1, 4.9, 5.0, 5.0, 5.2])
    # Three late ones on the first model, three on the second, where uploads are shorter.
    decision = fill(both, [5.0, 1.0, 5.05, 1.1, 5.3, 1.4], lags=[6, 1, 8, 3, 10, 5])
    assert float(decision.scores["rejected"]) == 2
    np.testing.assert_allclose(decision.direction.numpy(), (10.05 + 2.1) / 4, rtol=1e-12)


def test_earlier_uploads_on_a_model_are_remembered():
    # Two of three late uploads are hostile; the mean of the model's earlier ones tells.
    both = side_by_side(buffer_size=9)
    fill(both, [1.0, 1.0, 1.1, 0.9, 1.0, 1.0, 1.1, 0.9, 1.0])
    late = [9, 10, 11, 0, 0, 0, 0, 0, 0]
    decision = fill(both, [1.0, -8.0, -8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], lags=late)
    assert float(decision.scores["rejected"]) == 2
    np.testing.assert_allclose(decision.direction.numpy(), 1, rtol=1e-12)


def test_upload_on_too_old_a_model_is_refused():
    both = side_by_side(buffer_size=3, max_lag=1)
    for _ in range(2):
        fill(both, [1.0, 1.0, 1.0])
    decision = both.arrive(0, 6, ONE)
    assert not decision.accepted
    assert decision.reason == "too_old"
    assert both.arrive(0, 2, ONE).accepted


@pytest.mark.parametrize("setting", [{"buffer_size": -1}, {"max_lag": -1}])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        AsyncFilter(**setting)
