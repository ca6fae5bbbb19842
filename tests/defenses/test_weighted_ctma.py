import numpy as np
import pytest
import torch
from defending import DIM, SideBySide, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.weighted_ctma import WeightedCtmaServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import WeightedCtma

ONE = np.ones(DIM)


def side_by_side(num_clients=5, malicious_share=0.2, centre="geometric_median", momentum=0.9):
    settings = malicious_share, centre, momentum
    oracle = WeightedCtmaServer(num_clients, *settings)
    both = SideBySide(WeightedCtma(*settings), num_clients, oracle)
    if centre == "geometric_median":  # distances from inner products: to 3e-7 of a length
        both.rounding = 2e-4
    return both


@pytest.mark.parametrize("centre", ["geometric_median", "median"])
@given(
    stream=streams(5, min_size=10),
    malicious_share=st.sampled_from([0.0, 0.2, 0.37, 0.45]),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_streams_agree_with_the_oracle(centre, stream, malicious_share, momentum):
    side_by_side(5, malicious_share, centre, momentum).play(stream)


def one_each(both, values):
    return [both.arrive(k, 0, np.full(DIM, value)) for k, value in enumerate(values)][-1]


@pytest.mark.parametrize("centre", ["geometric_median", "median"])
def test_far_client_is_left_out_whole(centre):
    both = side_by_side(centre=centre)
    decision = one_each(both, [1.0, 1.1, 0.9, 1.04, 1e6])
    assert not decision.accepted
    assert decision.reason == "trimmed"
    np.testing.assert_allclose(decision.direction.numpy(), 1.01, rtol=1e-9)


def test_last_client_within_the_share_counts_in_part():
    both = side_by_side(malicious_share=0.3, centre="median")
    # 3.5 of 5 uploads count: the three nearest to 3, and half of the fourth.
    decision = one_each(both, [3.0, 2.0, 4.5, 0.0, 10.0])
    np.testing.assert_allclose(decision.direction.numpy(), 9.5 / 3.5, rtol=1e-12)


def test_client_weighs_as_much_as_it_has_uploaded():
    both = side_by_side(num_clients=3, malicious_share=0.0, momentum=0.0)
    for _ in range(6):
        both.arrive(0, 0, ONE)
    both.arrive(1, 0, 2 * ONE)
    decision = both.arrive(2, 0, 5 * ONE)
    np.testing.assert_allclose(decision.direction.numpy(), (6 + 2 + 5) / 8, rtol=1e-12)


def test_slow_malicious_majority_of_clients_is_outweighed():
    # Three of five clients are malicious, but send few of the uploads.
    both = side_by_side(malicious_share=0.3)
    rng = np.random.default_rng(0)
    for number in range(60):
        client = number % 2 if number % 5 else 2 + number // 5 % 3
        upload = -50 * ONE if client > 1 else ONE + 0.1 * rng.normal(size=DIM)
        decision = both.arrive(client, 0, upload)
    assert decision.ready
    np.testing.assert_allclose(decision.direction.numpy(), 1, atol=0.2)


def test_momentum_starts_with_the_first_upload_and_averages_later_ones():
    both = side_by_side(num_clients=1, malicious_share=0.0, momentum=0.75)
    assert torch.equal(both.arrive(0, 0, 8 * ONE).direction, torch.full((4,), 8.0).double())
    np.testing.assert_allclose(both.arrive(0, 0, 0 * ONE).direction.numpy(), 6, rtol=1e-12)


def test_first_step_waits_for_two_b_plus_one_clients():
    both = side_by_side(malicious_share=0.4)
    ready = [bool(both.arrive(client, 0, ONE).ready) for client in (0, 0, 1, 2, 1, 3, 4)]
    assert ready == [False] * 6 + [True]


def test_lone_first_client_does_not_steer():
    both = side_by_side()
    for _ in range(3):
        decision = both.arrive(0, 0, 1e9 * ONE)
        assert decision.accepted
        assert not decision.ready


@pytest.mark.parametrize(
    "setting", [{"malicious_share": 0.5}, {"malicious_share": -0.1}, {"momentum": 1.0}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        WeightedCtma(**setting)
