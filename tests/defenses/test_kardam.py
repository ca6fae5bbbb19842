import math

import numpy as np
import pytest
import torch
from defending import DIM, HESSIAN, START, SideBySide, streams
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.kardam import KardamServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import Kardam
from secureafl.defenses.kardam import _threshold

ONE, LOUD = np.ones(DIM), np.full(DIM, 1e6)


def side_by_side(
    num_clients=7,
    malicious_share=0.2,
    window=25,
    dampening="exponential",
    decay=0.2,
    escape=True,
    clip_norm=50.0,
):
    settings = malicious_share, window, dampening, decay, escape, clip_norm
    return SideBySide(Kardam(*settings), num_clients, KardamServer(num_clients, *settings))


@pytest.mark.parametrize("escape", [True, False])
@given(
    stream=streams(7, min_size=30, max_size=120),
    share=st.sampled_from([0.0, 0.1, 0.2, 0.33]),
    window=st.sampled_from([1, 2, 25]),
    dampening=st.sampled_from(["exponential", "inverse"]),
    clip_norm=st.sampled_from([0.3, 50.0]),
)
@settings(max_examples=settings().max_examples // 2)
def test_streams_agree_with_the_oracle(escape, stream, share, window, dampening, clip_norm):
    side_by_side(7, share, window, dampening, 0.2, escape, clip_norm).play(stream)


@given(stream=streams(4, min_size=30, max_size=120))
@settings(max_examples=settings().max_examples // 4)
def test_few_clients_agree_with_the_oracle_in_float32(stream):
    settings = 0.25, 25, "exponential", 0.2, True, 50.0
    SideBySide(Kardam(*settings), 4, KardamServer(4, *settings), dtype=torch.float32).play(stream)


def warm(both, arrivals=40, clients=7):
    """Alike honest clients, so that everybody has coefficients."""
    rng = np.random.default_rng(1)
    for number in range(arrivals):
        base = both.models[-1].numpy()
        both.arrive(number % clients, 0, HESSIAN * (base - 1) + 0.01 * rng.normal(size=DIM))
    return both


def test_loud_upload_is_refused_once_coefficients_are_known():
    both = warm(side_by_side())
    before = both.models[-1]
    decision = both.arrive(0, 0, LOUD)
    assert not decision.accepted
    assert float(decision.scores["lipschitz"]) > float(decision.scores["threshold"])
    assert torch.equal(both.models[-1], before)


def test_upload_before_any_coefficient_is_clipped():
    both = side_by_side(clip_norm=3.0)
    decision = both.arrive(0, 0, LOUD)
    assert decision.accepted
    assert float(torch.linalg.vector_norm(decision.direction)) == pytest.approx(3.0)


def test_other_gradient_on_the_same_model_is_refused_and_the_same_one_passes():
    both = warm(side_by_side())
    last = both.models[-2].numpy()  # the model under the last upload, which was applied
    applied = both.oracle.last[0]
    assert np.array_equal(both.oracle.last[1], last)
    assert not both.arrive(3, 1, applied + 1e-3).accepted
    assert both.arrive(3, 2, applied).accepted


def test_lock_up_ends_after_as_many_refusals_as_clients():
    both = warm(side_by_side())
    verdicts = [
        bool(both.arrive(number % 7, 0, LOUD * (-1) ** number).accepted) for number in range(8)
    ]
    assert verdicts == [False] * 7 + [True]


def test_escape_waits_for_a_client_that_may_be_applied():
    both = warm(side_by_side())
    for client in (0, 1, 0, 1):  # b = 2: neither of the two may come next
        both.arrive(client, 0, both.oracle.last[0])  # no change at all: passes
    assert both.oracle.senders[-4:] == [0, 1, 0, 1]
    assert not any(both.arrive(2, 0, LOUD * (-1) ** number).accepted for number in range(7))
    assert not both.arrive(0, 0, LOUD).accepted
    assert both.arrive(2, 0, LOUD).accepted


def test_without_the_escape_the_lock_up_lasts():
    both = warm(side_by_side(escape=False))
    assert not any(
        both.arrive(number % 7, 0, LOUD * (-1) ** number).accepted for number in range(60)
    )


def test_one_client_cannot_take_over():
    # b = 2: of any five applied in a row, no more than two clients' would be too few.
    both = warm(side_by_side())
    for _ in range(30):
        base = both.models[-1].numpy()
        decision = both.arrive(0, 0, HESSIAN * (base - 1))
        recent = both.oracle.senders[-5:]
        assert len(set(recent)) >= 3
    assert not decision.accepted
    assert float(decision.scores["lipschitz"]) <= float(decision.scores["threshold"])


@pytest.mark.parametrize(
    ("dampening", "weight"), [("exponential", math.exp(-0.6)), ("inverse", 0.25)]
)
def test_stale_upload_is_dampened(dampening, weight):
    both = side_by_side(dampening=dampening)
    for client in range(3):
        both.arrive(client, 0, ONE)
    decision = both.arrive(3, 3, ONE)
    np.testing.assert_allclose(decision.direction.numpy(), weight * ONE, rtol=1e-12)


def test_threshold_is_beyond_the_reach_of_b_clients():
    # Eight honest clients, two with absurd coefficients: interpolating would follow those.
    largest = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 1e9, 1e12], dtype=torch.float64)
    assert float(_threshold(largest[:, None], 2)) == 8.0


def test_threshold_counts_only_clients_with_a_coefficient():
    factors = torch.full((10, 3), -torch.inf, dtype=torch.float64)
    assert float(_threshold(factors, 2)) == torch.inf
    factors[4, 0], factors[7] = 5.0, torch.tensor([2.0, 9.0, 1.0])
    assert float(_threshold(factors, 2)) == 9.0  # 0.8 of two clients, rounded up
    factors[0, 2], factors[1, 1], factors[2, 0] = 6.0, 7.0, 8.0
    assert float(_threshold(factors, 2)) == 8.0  # four of five


def test_clients_own_coefficients_are_forgotten_beyond_the_window():
    both = side_by_side(num_clients=1, malicious_share=0.0, window=2)
    for step in (1.0, 50.0, 1.0, 1.0, 1.0):
        both.arrive(0, 0, step * START)
    assert len(both.oracle.factors[0]) == 2


@pytest.mark.parametrize(
    "setting",
    [
        {"malicious_share": 0.34},
        {"malicious_share": -0.1},
        {"window": 0},
        {"decay": -1.0},
        {"clip_norm": 0.0},
    ],
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Kardam(**setting)
