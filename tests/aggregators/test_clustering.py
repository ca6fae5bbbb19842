import sys

import numpy as np
import pytest

from secureafl.aggregators import clustering
from secureafl.core.errors import ConfigError


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_number_of_clusters_is_found(number, seed):
    rng = np.random.default_rng(seed)
    middles = 30 * np.array([[0, 0], [1, 0], [3, 3], [0, 6]])[:number]
    points = np.concatenate([middle + rng.normal(size=(12, 2)) for middle in middles])
    labels = clustering.natural_clusters(points, rng)
    assert np.bincount(labels).tolist() == [12] * number
    assert all(len(set(labels[k : k + 12])) == 1 for k in range(0, 12 * number, 12))


def test_points_that_coincide_are_never_parted():
    points = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 4, axis=0)
    labels = clustering.natural_clusters(points, np.random.default_rng(0))
    assert all(len(set(labels[k : k + 4])) == 1 for k in (0, 4, 8))
    same = clustering.natural_clusters(np.ones((5, 2)), np.random.default_rng(0))
    assert same.tolist() == [0] * 5


def test_one_point_is_one_cluster():
    assert clustering.natural_clusters(np.ones((1, 2)), np.random.default_rng(0)).tolist() == [0]


def test_missing_scikit_learn_is_reported_with_the_remedy(monkeypatch):
    clustering.scikit_learn.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ConfigError, match=r'pip install "secureafl\[cluster\]"'):
        clustering.scikit_learn()
