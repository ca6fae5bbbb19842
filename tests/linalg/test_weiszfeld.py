import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from secureafl.linalg.weiszfeld import distances_from_median


def distances(rows, weights, **settings):
    given = torch.as_tensor(rows, dtype=torch.float64)
    force = torch.as_tensor(weights, dtype=torch.float64)
    return distances_from_median(given @ given.T, force, **settings).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_sum_of_distances_is_the_least_there_is(seed):
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(9, 4)) + 3, rng.integers(1, 6, size=9)
    best = minimize(lambda at: weights @ np.linalg.norm(rows - at, axis=1), rows.mean(axis=0))
    assert weights @ distances(rows, weights, iterations=60) == pytest.approx(best.fun, rel=1e-6)


@pytest.mark.parametrize("far", [1e3, 1e9, 1e18])
def test_minority_is_no_power_however_far_away_it_is(far):
    rng = np.random.default_rng(0)
    near = rng.normal(size=(6, 5)) + 2
    rows = np.concatenate([near, far * (1 + 0.1 * rng.normal(size=(4, 5)))])
    found = distances(rows, np.ones(10))[:6]
    # Four of ten can move a median, but no further than the majority is spread.
    assert found.max() < 2 * np.linalg.norm(near[:, None] - near, axis=2).max()


def test_vector_without_weight_changes_nothing():
    rows = np.random.default_rng(1).normal(size=(6, 3))
    with_it = distances(rows, [1, 2, 1, 1, 3, 0])
    np.testing.assert_allclose(with_it[:5], distances(rows[:5], [1, 2, 1, 1, 3]), rtol=1e-12)


def test_vectors_of_a_majority_that_agrees_are_the_median():
    rows = np.array([[1.0, 2.0]] * 4 + [[50.0, -7.0], [8.0, 9.0]])
    found = distances(rows, np.ones(6))
    np.testing.assert_allclose(found[:4], 0, atol=1e-5)
    np.testing.assert_allclose(found[4:], np.linalg.norm(rows[4:] - rows[0], axis=1), rtol=1e-6)
