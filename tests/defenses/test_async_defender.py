import numpy as np
import pytest
import torch
from defending import DIM, HESSIAN, SideBySide, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.async_defender import AsyncDefenderServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import AsyncDefender

ONE = np.ones(DIM)


def side_by_side(memory=0.9, headroom=2.0, clip_norm=50.0, credibility=False):
    settings = memory, headroom, clip_norm, credibility
    return SideBySide(AsyncDefender(*settings), 5, AsyncDefenderServer(*settings))


@pytest.mark.parametrize("credibility", [True, False])
@given(
    stream=streams(5),
    memory=st.sampled_from([0.0, 0.5, 0.75, 0.9]),
    headroom=st.sampled_from([1.0, 2.0]),
    clip_norm=st.sampled_from([0.5, 50.0]),
)
def test_streams_agree_with_the_oracle(credibility, stream, memory, headroom, clip_norm):
    side_by_side(memory, headroom, clip_norm, credibility).play(stream)


def test_first_upload_is_clipped_and_counts_fully():
    decision = side_by_side(clip_norm=3.0).arrive(0, 0, 1e6 * ONE)
    assert float(decision.scores["weight"]) == 1.0
    assert float(torch.linalg.vector_norm(decision.direction)) == pytest.approx(3.0)


def started(**settings):
    both = side_by_side(**settings)
    for number in range(10):
        both.arrive(number % 5, 0, ONE)
    return both


def test_hostile_first_upload_does_not_turn_the_reference_round():
    both = side_by_side()
    both.arrive(0, 0, -ONE)
    for number in range(9):
        both.arrive(1 + number % 4, 0, ONE)
    assert both.arrive(1, 0, ONE).accepted
    assert not both.arrive(0, 0, -ONE).accepted


def test_upload_counts_by_its_cosine():
    sideways = np.array([1.0, 1.0, 0.0, 0.0])
    decision = started().arrive(0, 0, sideways)
    np.testing.assert_allclose(decision.direction.numpy(), np.sqrt(0.5) * sideways, rtol=1e-12)
    assert not started().arrive(0, 0, -sideways).accepted
    assert not started().arrive(0, 0, np.array([1.0, -1.0, 0.0, 0.0])).accepted


def test_long_upload_is_shortened():
    decision = started(headroom=3.0).arrive(0, 0, 1e6 * ONE)
    np.testing.assert_allclose(decision.direction.numpy(), 3 * ONE, rtol=1e-12)


def test_steps_do_not_die_out_where_clients_disagree():
    # Bounded by the length of the mean step, which averaging shrinks, they would.
    both, rng = started(), np.random.default_rng(0)
    lengths = []
    for number in range(400):
        upload = ONE + 2 * rng.normal(size=DIM)
        decision = both.arrive(number % 5, 0, upload)
        if decision.accepted:
            lengths.append(float(torch.linalg.vector_norm(decision.direction)))
    assert np.mean(lengths[-50:]) > 0.5 * np.mean(lengths[:50])


def test_clients_that_were_shut_out_are_heard_once_they_are_the_many():
    # Compared with accepted uploads only, they never would be.
    both = started()
    verdicts = [bool(both.arrive(number % 5, 0, -ONE).accepted) for number in range(12)]
    assert not verdicts[0]
    assert verdicts[-1]


def test_reference_that_vanished_is_begun_anew():
    both = side_by_side()
    for _ in range(3):
        both.arrive(0, 0, np.zeros(DIM))
    decision = both.arrive(1, 0, ONE)
    assert decision.accepted
    assert torch.equal(decision.direction, torch.ones(DIM, dtype=torch.float64))


def test_credibility_drops_a_client_that_opposed_before():
    both = started(credibility=True)
    for _ in range(5):
        both.arrive(0, 0, -ONE)
    decision = both.arrive(0, 0, ONE)
    assert float(decision.scores["cosine"]) > 0.99
    assert not decision.accepted
    assert both.arrive(1, 0, ONE).accepted


def test_credibility_can_be_regained():
    both = started(credibility=True)
    for _ in range(5):
        both.arrive(0, 0, -ONE)
    verdicts = [bool(both.arrive(0, 0, ONE).accepted) for _ in range(10)]
    assert not verdicts[0]
    assert verdicts[-1]


def test_honest_clients_are_mostly_believed():
    both, rng = side_by_side(credibility=True), np.random.default_rng(3)
    verdicts = []
    for number in range(40):
        base = both.models[-1].numpy()
        upload = HESSIAN * (base - 1) + 0.05 * rng.normal(size=DIM)
        verdicts.append(bool(both.arrive(number % 5, 0, upload).accepted))
    assert np.mean(verdicts) > 0.9


@pytest.mark.parametrize(
    "setting", [{"memory": 1.0}, {"memory": -0.1}, {"headroom": 0.9}, {"clip_norm": 0.0}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        AsyncDefender(**setting)
