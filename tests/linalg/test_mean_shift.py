import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import sign_guard as oracle
from sklearn.cluster import MeanShift, estimate_bandwidth

from secureafl.linalg.mean_shift import largest_cluster


def members(points, present=None):
    present = np.ones(len(points), dtype=bool) if present is None else present
    found = largest_cluster(torch.from_numpy(points), torch.from_numpy(present))
    return found.numpy()


@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), ties=st.booleans())
def test_largest_cluster_is_that_of_the_formula(seed, n, ties):
    points = np.random.default_rng(seed).random((n, 3))
    points = np.round(4 * points) / 4 if ties else points
    assert np.array_equal(members(points), oracle.largest_cluster(points))


@given(seed=st.integers(0, 10**6), sizes=st.permutations([12, 7, 4]))
def test_largest_cluster_is_what_scikit_learn_finds_where_clusters_are_clear(seed, sizes):
    rng = np.random.default_rng(seed)
    middles = np.array([[0.0, 0, 0], [5, 0, 0], [0, 5, 5]])
    points = np.concatenate(
        [m + 0.3 * rng.normal(size=(k, 3)) for m, k in zip(middles, sizes, strict=True)]
    )
    points = rng.permutation(points)
    width = estimate_bandwidth(points, quantile=0.5)
    np.testing.assert_allclose(width, oracle.bandwidth(points))
    labels = MeanShift(bandwidth=width, cluster_all=False).fit(points).labels_
    largest = np.bincount(labels[labels >= 0]).argmax()
    assert np.array_equal(members(points), labels == largest)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 12))
def test_absent_points_do_not_matter(seed, n):
    rng = np.random.default_rng(seed)
    points, present = rng.random((n, 3)), rng.random(n) < 0.6
    present[0] = True
    found = members(np.where(present[:, None], points, 0.0), present)
    assert not found[~present].any()
    assert np.array_equal(found[present], oracle.largest_cluster(points[present]))


def test_three_points_or_fewer_are_one_cluster():
    for n in (1, 2, 3):
        assert members(np.random.default_rng(n).random((n, 3))).all()


def test_nobody_present_is_nobody():
    assert not members(np.zeros((3, 3)), np.zeros(3, dtype=bool)).any()
