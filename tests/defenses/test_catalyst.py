import numpy as np
import pytest
import torch
from defending import DIM, START, SideBySide, streams
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.catalyst import CatalystServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import Catalyst

ONE = np.ones(DIM)


def side_by_side(num_clients=7, malicious_share=0.2, max_lag=5, dtype=torch.float64):
    settings = malicious_share, max_lag
    oracle = CatalystServer(num_clients, *settings)
    return SideBySide(Catalyst(*settings), num_clients, oracle, dtype=dtype)


def without_twins(stream):
    """No zero and no repeated uploads: their distances tie, and rounding would break the tie."""
    return [
        (client, lag, "honest" if kind in ("zero", "again", "flipped") else kind, seed + number)
        for number, (client, lag, kind, seed) in enumerate(stream)
    ]


@given(
    stream=streams(7, min_size=30, max_size=120),
    share=st.sampled_from([0.0, 0.1, 0.2, 0.4]),
    max_lag=st.sampled_from([0, 1, 2, 5]),
)
@settings(max_examples=settings().max_examples // 2)
def test_streams_agree_with_the_oracle(stream, share, max_lag):
    side_by_side(7, share, max_lag).play(without_twins(stream))


def test_step_waits_for_that_many_clients_on_the_current_model():
    both, rng = side_by_side(), np.random.default_rng(0)
    ready = [
        bool(both.arrive(client, 0, ONE + 0.1 * rng.normal(size=DIM)).ready)
        for client in (0, 1, 1, 2, 0, 3, 4)  # b = 2, so five different ones
    ]
    assert ready == [False] * 6 + [True]
    assert np.array_equal(both.models[6].numpy(), START)
    assert not np.array_equal(both.models[7].numpy(), START)


def fill(both, clients=range(5), spread=0.1, seed=0):
    """A step from honest clients on the current model; the last decision."""
    rng = np.random.default_rng(seed)
    for client in clients:
        decision = both.arrive(client, 0, ONE + spread * rng.normal(size=DIM))
    assert decision.ready
    return decision


def test_waiting_does_not_make_an_upload_late():
    both = side_by_side()
    for _ in range(30):
        both.arrive(0, 0, ONE)
    decision = both.arrive(1, 6, ONE)  # six arrivals old, but the same model
    assert int(decision.scores["lag"]) == 0
    assert int(decision.scores["answers"]) == 2


def test_outliers_and_long_uploads_do_not_steer():
    both, rng = side_by_side(), np.random.default_rng(0)
    uploads = [ONE + 0.1 * rng.normal(size=DIM) for _ in range(3)]
    for client, upload in enumerate([-1e6 * uploads[0], 1e6 * uploads[1], *uploads]):
        decision = both.arrive(client, 0, upload)
    assert decision.ready
    assert float(torch.linalg.vector_norm(decision.direction)) < 3.0
    assert (decision.direction > 0.5).all()


def test_late_upload_joins_the_next_step_with_weight_one_over_n():
    plain, late = side_by_side(), side_by_side()
    for both in (plain, late):
        fill(both)
    upload = ONE + 0.01
    decision = late.arrive(6, 1, upload)
    assert decision.accepted
    assert int(decision.scores["lag"]) == 1
    one, other = (fill(both, seed=1).direction.numpy() for both in (plain, late))
    radius = late.oracle.radius[0]
    clipped = upload * min(1, radius / np.linalg.norm(upload))
    np.testing.assert_allclose(other - one, clipped / 7, rtol=1e-9)


def test_late_upload_unlike_its_models_majority_is_left_out():
    plain, late = side_by_side(), side_by_side()
    for both in (plain, late):
        fill(both)
    late.arrive(6, 1, -ONE)
    one, other = (fill(both, seed=1).direction.numpy() for both in (plain, late))
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_late_upload_counts_once():
    both = side_by_side()
    fill(both)
    both.arrive(6, 1, ONE)
    first, second = fill(both, seed=1), fill(both, seed=1)
    assert float(first.direction.sum()) > float(second.direction.sum()) + 0.1


def test_upload_on_too_old_a_model_is_refused():
    both = side_by_side(max_lag=2)
    for seed in range(3):
        fill(both, seed=seed)
    decision = both.arrive(6, 15, ONE)
    assert not decision.accepted
    assert decision.reason == "too_old"
    assert both.arrive(6, 10, ONE).accepted


def test_few_clients_are_not_waited_for_in_vain():
    both = side_by_side(num_clients=3, malicious_share=0.4)
    assert [bool(both.arrive(client, 0, ONE * (1 + client)).ready) for client in range(3)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "setting", [{"malicious_share": 0.5}, {"malicious_share": -0.1}, {"max_lag": -1}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Catalyst(**setting)
