import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.catalyst import cosine_distances, majority_group

from secureafl.kernels.linkage import closest_majority, joining_distances


def found(distances, present=None):
    count = len(distances)
    present = np.ones(count, bool) if present is None else present
    kept = closest_majority(torch.from_numpy(distances), torch.from_numpy(present))
    return torch.nonzero(kept)[:, 0].tolist()


def random_distances(seed, count, coarse=False):
    rng = np.random.default_rng(seed)
    distances = cosine_distances(rng.normal(size=(count, 3)))
    return np.round(distances, 1) if coarse else distances


@given(seed=st.integers(0, 10**6), count=st.integers(1, 25), coarse=st.booleans())
@settings(max_examples=3 * settings().max_examples)
def test_group_is_that_of_the_oracle_ties_included(seed, count, coarse):
    distances = random_distances(seed, count, coarse)
    group = majority_group(distances)
    kept = found(distances)
    assert 2 * len(kept) > count
    if not coarse:
        assert kept == group
    else:  # of two groups that reach a majority at the same distance, either is right
        hop = max(joining(distances)[a, b] for a in kept for b in kept)
        assert hop == max(joining(distances)[a, b] for a in group for b in group)


def joining(distances):
    everybody = torch.ones(len(distances), dtype=torch.bool)
    return joining_distances(torch.from_numpy(distances), everybody).numpy()


@given(seed=st.integers(0, 10**6), count=st.integers(2, 20))
def test_absent_points_do_not_matter(seed, count):
    rng = np.random.default_rng(seed)
    distances, present = random_distances(seed, count), rng.random(count) < 0.7
    present[0] = True
    inside = np.flatnonzero(present)
    group = majority_group(distances[np.ix_(inside, inside)])
    distances[~present], distances[:, ~present] = 0.0, 0.0  # near everybody, if they counted
    assert found(distances, present) == inside[group].tolist()


def test_nobody_present_gives_nobody():
    assert found(np.zeros((3, 3)), np.zeros(3, bool)) == []


def test_two_are_joined_at_the_longest_hop_of_the_best_path():
    line = np.array([0.0, 1.0, 3.0, 3.5])
    expected = [[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 0, 0.5], [2, 2, 0.5, 0]]
    assert joining(np.abs(line[:, None] - line[None, :])).tolist() == expected


def test_tight_minority_does_not_win_and_far_points_stay_out():
    points = np.array([0.0, 0.001, 0.002, 5.0, 5.5, 6.1, 6.5, 20.0])
    assert found(np.abs(points[:, None] - points[None, :])) == [0, 1, 2, 3, 4, 5, 6]
    points[2] = 6.3  # two liars: the other five are a majority by themselves
    assert found(np.abs(points[:, None] - points[None, :])) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("seed", range(20))
def test_group_is_the_cluster_hdbscan_finds(seed):
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 40))
    rows = rng.normal(size=(count, 4))
    rows[: count // 3] -= 3
    distances = cosine_distances(rows)
    model = cluster.HDBSCAN(
        min_cluster_size=max(2, count // 2 + 1),
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    )
    assert found(distances) == np.flatnonzero(model.fit(distances).labels_ == 0).tolist()
