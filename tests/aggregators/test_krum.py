import numpy as np
import pytest
from aggregating import aggregated, assert_close, crowds, everybody, with_outliers
from hypothesis import given
from reference import krum as oracle
from reference.share import assumed_malicious

from secureafl.aggregators import Krum
from secureafl.core.errors import ConfigError

SHARES = (0.0, 0.1, 0.2, 0.4, 0.49)


@pytest.mark.parametrize("share", SHARES)
@given(crowd=crowds())
def test_krum_equals_its_oracle(share, crowd):
    found = aggregated(Krum(share), *crowd)
    assert_close(found, oracle.krum(crowd.rows, share), crowd)


@pytest.mark.parametrize("distance", [1e3, 1e12, 1e19])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_chosen_row_scores_best_however_far_outliers_are(share, distance):
    # Distances of 1e38 swallow the rest of a score: then all that is asked is a best score.
    values = with_outliers(distance=distance)
    found = aggregated(Krum(share), values, everybody(20))
    chosen = int(np.flatnonzero((values == found).all(axis=1))[0])
    scores = oracle.scores(values, assumed_malicious(20, share))
    assert scores[chosen] <= min(scores) * (1 + 1e-9)


def test_krum_returns_one_of_the_rows_bit_by_bit():
    values = with_outliers().astype(np.float32)
    found = aggregated(Krum(), values, everybody(20)).astype(np.float32)
    assert (values == found).all(axis=1).any()


def test_distances_are_squared_and_neighbours_two_fewer_than_those_not_suspected():
    # n = 6, f = 1: three neighbours. Unsquared distances would choose (0, 1), and a fourth
    # neighbour (0, 2).
    values = np.array([[0.0, 2], [2, 0], [4, 2], [0, 1], [6, 6], [2, 6]])
    assert oracle.scores(values, 1) == [25, 21, 41, 23, 88, 56]
    assert aggregated(Krum(0.1), values, everybody(6)).tolist() == [2, 0]


def test_two_clients_are_each_others_neighbour_and_the_first_is_taken():
    assert aggregated(Krum(), [[5.0], [2.0]], everybody(2)).item() == 5.0


def test_of_three_clients_one_of_the_close_pair_is_taken():
    assert aggregated(Krum(), [[90.0], [1.0], [2.0]], everybody(3)).item() == 1.0


@pytest.mark.parametrize("share", [-0.1, 0.5])
def test_share_that_is_no_minority_is_refused(share):
    with pytest.raises(ConfigError, match="share"):
        Krum(share)
