import pytest
import torch
from defending import START, TRUSTED, SideBySide, own_gradient, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.aflguard import AflguardServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import Aflguard


def side_by_side(closeness=1.5):
    oracle = AflguardServer(own_gradient, closeness)
    return SideBySide(Aflguard(closeness), 5, oracle, TRUSTED)


@given(stream=streams(5), closeness=st.sampled_from([0.2, 1.0, 1.5, 5.0]))
def test_streams_agree_with_the_oracle(stream, closeness):
    side_by_side(closeness).play(stream)


def test_upload_is_applied_as_it_came():
    both, upload = side_by_side(), 1.2 * own_gradient(START)
    decision = both.arrive(0, 0, upload)
    assert decision.accepted
    assert torch.equal(decision.direction, torch.from_numpy(upload))


def test_upload_on_the_edge_of_the_ball_passes():
    both, own = side_by_side(1.0), own_gradient(START)
    assert both.arrive(0, 0, 2 * own).accepted  # as far from the server's as that is long


@pytest.mark.parametrize("factor", [-0.6, 2.6, 100.0])
def test_direction_alone_does_not_help(factor):
    # The SecureAFL paper describes a test of the direction; the defence's own is of the distance.
    assert not side_by_side().arrive(0, 0, factor * own_gradient(START)).accepted


def test_slightly_opposed_upload_passes_if_it_is_near():
    assert side_by_side().arrive(0, 0, -0.4 * own_gradient(START)).accepted


@pytest.mark.parametrize("closeness", [0.0, -1.0])
def test_closeness_out_of_range_is_refused(closeness):
    with pytest.raises(ConfigError, match="closeness"):
        Aflguard(closeness)
