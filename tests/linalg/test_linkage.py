import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.catalyst import cosine_distances, majority_group
from reference.linkage import majority
from sklearn.cluster import HDBSCAN

from secureafl.linalg.linkage import closest_majority, joining_distances


def distances(seed, n, ties):
    points = np.random.default_rng(seed).normal(size=(n, 2))
    points = np.round(2 * points) if ties else points
    return np.linalg.norm(points[:, None] - points, axis=2)


def members(matrix, present=None):
    present = np.ones(len(matrix), dtype=bool) if present is None else present
    found = closest_majority(torch.from_numpy(matrix), torch.from_numpy(present))
    return np.flatnonzero(found.numpy()).tolist()


@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), ties=st.booleans())
def test_majority_is_the_first_to_be_joined_edge_by_edge(seed, n, ties):
    matrix = distances(seed, n, ties)
    found = members(matrix)
    if ties:  # two clusters cannot both be a majority, but equal edges may join in any order
        assert len(found) > n / 2
    assert found == majority(matrix)


@given(seed=st.integers(0, 10**6), n=st.integers(3, 25))
def test_majority_is_what_hdbscan_finds(seed, n):
    matrix = distances(seed, n, ties=False)
    model = HDBSCAN(
        min_cluster_size=n // 2 + 1,
        min_samples=1,
        allow_single_cluster=True,
        metric="precomputed",
        copy=True,
    )
    assert members(matrix) == np.flatnonzero(model.fit(matrix).labels_ == 0).tolist()


@given(seed=st.integers(0, 10**6), n=st.integers(2, 12))
def test_absent_points_neither_count_nor_join(seed, n):
    rng = np.random.default_rng(seed)
    present = rng.random(n) < 0.6
    present[0] = True
    matrix = distances(seed, n, ties=False)
    matrix[~present] = matrix[:, ~present] = 0.0  # near everybody
    known = np.flatnonzero(present)
    expected = known[majority(matrix[np.ix_(known, known)])].tolist()
    assert members(matrix, present) == expected


def test_nobody_present_is_no_majority():
    assert members(np.zeros((3, 3)), np.zeros(3, dtype=bool)) == []


def test_points_are_joined_at_the_longest_step_of_the_best_way():
    line = np.abs(np.subtract.outer([0.0, 1.0, 3.0, 9.0], [0.0, 1.0, 3.0, 9.0]))
    found = joining_distances(torch.from_numpy(line), torch.ones(4, dtype=torch.bool))
    expected = [[0, 1, 2, 6], [1, 0, 2, 6], [2, 2, 0, 6], [6, 6, 6, 0]]
    assert found.tolist() == expected


@pytest.mark.parametrize("n", [4, 9])
def test_chain_hangs_together_although_its_ends_are_far_apart(n):
    points = np.concatenate([np.arange(n), [1000.0 * k for k in range(1, n)]])
    matrix = np.abs(np.subtract.outer(points, points))
    assert members(matrix) == list(range(n))


def test_tight_minority_does_not_win_and_far_points_stay_out():
    points = np.array([0.0, 0.001, 0.002, 5.0, 5.5, 6.1, 6.5, 20.0])
    assert members(np.abs(points[:, None] - points)) == [0, 1, 2, 3, 4, 5, 6]
    points[2] = 6.3  # two liars: the other five are a majority by themselves
    assert members(np.abs(points[:, None] - points)) == [2, 3, 4, 5, 6]


@given(seed=st.integers(0, 10**6), n=st.integers(1, 25))
def test_majority_is_that_of_catalysts_oracle(seed, n):
    matrix = cosine_distances(np.random.default_rng(seed).normal(size=(n, 3)))
    assert members(matrix) == majority_group(matrix)


def test_several_sets_at_a_time_are_as_each_alone():
    torch.manual_seed(0)
    points = torch.rand(5, 7, 3, dtype=torch.float64)
    distances, present = torch.cdist(points, points), torch.rand(5, 7) < 0.7
    alone = [closest_majority(d, p) for d, p in zip(distances, present, strict=True)]
    assert torch.equal(closest_majority(distances, present), torch.stack(alone))
