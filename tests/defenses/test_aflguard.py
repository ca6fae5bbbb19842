import pytest
import torch
from defending import CENTRES, HESSIAN, START, TRUSTED, SideBySide, own_gradient, streams
from hypothesis import given
from hypothesis import strategies as st
from reference.aflguard import AflguardServer

from secureafl.core.errors import ConfigError
from secureafl.defenses import Aflguard


def side_by_side(closeness=1.5, form="distance"):
    oracle = AflguardServer(own_gradient, closeness, form)
    return SideBySide(Aflguard(closeness, form=form), 5, oracle, TRUSTED)


@pytest.mark.parametrize("form", ["distance", "alignment"])
@given(stream=streams(5), closeness=st.sampled_from([0.2, 1.0, 1.5, 5.0]))
def test_streams_agree_with_the_oracle(form, stream, closeness):
    side_by_side(closeness, form).play(stream)


class Watched:
    """The trusted samples, and which of them were asked for last."""

    labels = TRUSTED.labels

    def gradient(self, weights, rows=None):
        self.rows = rows
        return TRUSTED.gradient(weights, rows)


def by_batches(batch_size):
    """Both sides on the samples that the defence draws."""
    samples = Watched()

    def own(weights):
        centres = CENTRES[samples.rows.numpy()]
        return HESSIAN * (weights - centres.mean(axis=0))

    defense = Aflguard(1.5, batch_size)
    return SideBySide(defense, 5, AflguardServer(own, 1.5), samples), samples


@given(stream=streams(5), batch_size=st.integers(1, 5))
def test_streams_agree_with_the_oracle_on_the_samples_drawn(stream, batch_size):
    by_batches(batch_size)[0].play(stream)


def test_samples_are_drawn_anew_for_each_arrival_none_twice_and_all_in_time():
    both, samples = by_batches(2)
    drawn = []
    for number in range(200):  # the draws are secret: a couple is missing once in a hundred million
        both.arrive(number % 5, 0, own_gradient(START))
        drawn.append(tuple(sorted(samples.rows.tolist())))
    assert all(first < second for first, second in drawn)
    assert len(set(drawn)) == 10  # every couple of five
    assert max(map(drawn.count, drawn)) < 60


def test_larger_batch_than_samples_is_all_of_them():
    both, samples = by_batches(32)
    both.arrive(0, 0, own_gradient(START))
    assert sorted(samples.rows.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("factor", "passes"), [(1e-3, True), (100.0, True), (-1e-3, False)])
def test_alignment_asks_for_the_direction_alone(factor, passes):
    upload = factor * own_gradient(START)
    decision = side_by_side(form="alignment").arrive(0, 0, upload)
    assert bool(decision.accepted) == passes
    assert torch.equal(decision.direction, torch.from_numpy(upload if passes else 0 * upload))


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


def test_negative_batch_is_refused():
    with pytest.raises(ConfigError, match="batch_size = -1"):
        Aflguard(batch_size=-1)


@pytest.mark.parametrize("closeness", [0.0, -1.0])
def test_closeness_out_of_range_is_refused(closeness):
    with pytest.raises(ConfigError, match="closeness"):
        Aflguard(closeness)
