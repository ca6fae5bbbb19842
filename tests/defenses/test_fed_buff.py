import numpy as np
import pytest
from defending import START, SideBySide, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.fed_buff import FedBuffServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import FedBuff


def side_by_side(buffer_size=10):
    return SideBySide(FedBuff(buffer_size), 5, FedBuffServer(buffer_size))


@given(stream=streams(5), buffer_size=st.integers(1, 12))
def test_streams_agree_with_the_oracle(stream, buffer_size):
    side_by_side(buffer_size).play(stream)


def test_model_moves_with_every_full_buffer_only():
    both = side_by_side(3)
    moved = []
    for number in range(9):
        both.arrive(number % 5, 0, np.ones(4))
        moved.append(not np.array_equal(both.models[-1].numpy(), both.models[-2].numpy()))
    assert moved == [False, False, True] * 3
    np.testing.assert_allclose(both.models[-1].numpy(), START - 3 * 0.05, rtol=1e-12)


def test_one_upload_is_one_discounted_step_with_a_buffer_of_one():
    both = side_by_side(1)
    for _ in range(3):
        both.arrive(0, 0, np.ones(4))
    decision = both.arrive(1, 3, np.ones(4))
    np.testing.assert_allclose(decision.direction.numpy(), 0.5, rtol=1e-12)


def test_huge_uploads_do_not_overflow_the_buffer():
    both = side_by_side(4)
    for _ in range(4):
        decision = both.arrive(0, 0, np.full(4, 0.49e18))
    assert decision.ready
    np.testing.assert_allclose(decision.direction.numpy(), 0.49e18, rtol=1e-12)


def test_empty_buffer_is_refused():
    with pytest.raises(ConfigError, match="buffer_size"):
        FedBuff(0)
