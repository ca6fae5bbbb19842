import numpy as np
import torch
from defending import DIM, SideBySide, streams
from hypothesis import given
from reference.norm_clipping import NormClippingServer

from secureafl.defenses import NormClipping

UNIT = np.full(DIM, DIM**-0.5)


def side_by_side():
    return SideBySide(NormClipping(), 5, NormClippingServer())


@given(stream=streams(5))
def test_streams_agree_with_the_oracle(stream):
    side_by_side().play(stream)


def length_of(decision):
    return float(torch.linalg.vector_norm(decision.direction))


def test_upload_is_no_longer_than_the_median_of_the_last_ones():
    both = side_by_side()
    for client, norm in enumerate([1.0, 2.0, 3.0, 4.0]):
        both.arrive(client, 0, norm * UNIT)
    assert np.isclose(length_of(both.arrive(4, 0, 100 * UNIT)), 3)
    assert np.isclose(length_of(both.arrive(0, 0, 1.5 * UNIT)), 1.5)


def test_of_two_middle_norms_the_smaller_counts():
    both = side_by_side()
    both.arrive(0, 0, UNIT)
    assert np.isclose(length_of(both.arrive(1, 0, 1e6 * UNIT)), 1)


def test_first_upload_is_its_own_measure():
    assert np.isclose(length_of(side_by_side().arrive(0, 0, 1e6 * UNIT)), 1e6)


def test_client_counts_with_its_last_upload_alone():
    both = side_by_side()
    for norm in (50.0, 60.0, 70.0, 1.0):
        both.arrive(0, 0, norm * UNIT)
    assert np.isclose(length_of(both.arrive(1, 0, 10 * UNIT)), 1)


def test_direction_is_kept():
    both = side_by_side()
    both.arrive(0, 0, UNIT)
    decision = both.arrive(1, 0, np.array([30.0, 0, 0, -40.0]))
    np.testing.assert_allclose(decision.direction.numpy(), [0.6, 0, 0, -0.8], rtol=1e-12)


def test_a_minority_moves_the_model_no_further_than_the_median_client():
    both, rng = side_by_side(), np.random.default_rng(0)
    for number in range(40):
        both.arrive(number % 3, 0, rng.uniform(0.5, 1.0) * UNIT)
        decision = both.arrive(3 + number % 2, 0, -1e9 * UNIT)
        assert number == 0 or length_of(decision) <= 1.0
