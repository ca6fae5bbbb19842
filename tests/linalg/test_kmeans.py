import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import kmeans
from sklearn.cluster import KMeans

from secureafl.linalg.kmeans import upper_cluster


def found(values, clusters, present=None):
    values = torch.tensor(values, dtype=torch.float64)
    present = torch.ones_like(values, dtype=torch.bool) if present is None else present
    upper, squares = upper_cluster(values, torch.as_tensor(present), clusters)
    return upper.numpy(), squares.numpy()


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    clusters=st.integers(2, 4),
    ties=st.booleans(),
)
def test_cut_is_the_best_of_all(seed, n, clusters, ties):
    rng = np.random.default_rng(seed)
    values = rng.exponential(size=n) * (2 if ties else 1)
    values = np.round(values) if ties else values
    upper, squares = found(values, clusters)
    expected, least = kmeans.upper_cluster(values, clusters)
    assert upper.tolist() == expected.tolist()
    np.testing.assert_allclose(squares, least, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clusters", [2, 3])
def test_clusters_are_those_of_scikit_learn(clusters):
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = np.concatenate([rng.normal(k, 0.1, size=rng.integers(2, 9)) for k in range(3)])
        model = KMeans(clusters, n_init=20, random_state=0).fit(values[:, None])
        top = model.labels_ == model.cluster_centers_[:, 0].argmax()
        upper, squares = found(values, clusters)
        assert upper.tolist() == top.tolist()
        np.testing.assert_allclose(squares, model.inertia_, rtol=1e-9)


@given(seed=st.integers(0, 10**6))
def test_sets_are_cut_one_by_one_and_the_absent_do_not_count(seed):
    rng = np.random.default_rng(seed)
    values, present = rng.normal(size=(4, 9)), rng.random((4, 9)) < 0.6
    values[~present] = 1e6
    upper, squares = found(values, 3, present)
    for k in range(4):
        if present[k].any():
            expected, least = kmeans.upper_cluster(values[k, present[k]], 3)
            assert upper[k, present[k]].tolist() == expected.tolist()
            np.testing.assert_allclose(squares[k], least, rtol=1e-9, atol=1e-12)
        assert not upper[k, ~present[k]].any()


def test_equal_values_have_no_highest_cluster():
    upper, squares = found([2.0, 2.0, 2.0], 3)
    assert not upper.any()
    assert squares == 0
