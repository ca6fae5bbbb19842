"""Weights from curvature, worked out by hand."""

import numpy as np
import pytest
import torch

from secureafl.core.curvature import (
    CurvatureStats,
    curvature_weights,
    effective_samples,
    no_curvature,
    update_curvature,
)


def weights_of(means, variance=0.0, count=30, memory=0.95, credit=1.0, among=None):
    """Weights of clients with these mean cosines."""
    exact = torch.tensor(means, dtype=torch.float64)
    counts = torch.full((len(means),), count) if isinstance(count, int) else torch.tensor(count)
    stats = CurvatureStats(exact, torch.full_like(exact, variance), counts)
    marked = torch.tensor(among or [True] * len(means))
    return curvature_weights(stats, memory, marked, credit).tolist()


@pytest.mark.parametrize(("mean", "weight"), [(0.15, 0.0), (0.25, 0.2), (0.4, 0.5), (0.65, 1.0)])
@pytest.mark.parametrize(("variance", "credit"), [(0.16, 1.0), (0.04, 2.0)])
def test_weight_rises_from_a_quarter_to_three_quarters_with_the_credit(
    mean, weight, variance, credit
):
    # A credit of 0.1, which is added to the mean; that of the median client is not.
    found = weights_of([1.0, 1.0, 1.0, mean], variance, count=16, credit=credit)
    assert found == pytest.approx([1, 1, 1, weight], abs=1e-9)


@pytest.mark.parametrize(("count", "weight"), [(4, 1.0), (5, 0.0)])
def test_curvature_counts_from_the_fifth_observation(count, weight):
    assert weights_of([1.0, 1.0, 1.0, -1.0], count=[30, 30, 30, count]) == [1, 1, 1, weight]


def test_moving_average_is_worth_a_limited_number_of_samples():
    assert [effective_samples(memory) for memory in (0.0, 0.5, 0.95)] == [1, 3, 39]
    found = weights_of([1.0, 1.0, 1.0, 0.4], variance=0.03, count=1000, memory=0.5)
    assert found == pytest.approx([1, 1, 1, 0.5])


def test_who_is_not_marked_is_left_out_of_the_median():
    # With the last two, the median would be 0.4 and the third client's weight 0.
    among = [True, True, True, False, False]
    found = weights_of([0.4, 0.2, 0.1, 1.0, 1.0], among=among)
    assert found == pytest.approx([1, 1, 0.5, 1, 1])


def test_curvature_does_not_count_where_its_median_is_negative():
    assert weights_of([0.5, -0.3, -0.3, -0.3, -0.3]) == [1] * 5


def observed(cosines, memory):
    """The statistics of the second of two clients after these cosines."""
    stats = no_curvature(2, torch.device("cpu"))
    for cosine in cosines:
        exact = torch.tensor(cosine, dtype=torch.float64)
        update_curvature(stats, torch.tensor(1), exact, torch.tensor(True), memory)
    return stats


def test_curvature_is_a_mean_at_first_and_a_moving_average_later():
    stats = observed([1.0, 0.0, -1.0], memory=0.6)
    # Rates 1, 1/2 and 0.4 (above 1/3): means 1, 0.5, -0.1; variances 0, 0.25, 0.6 (0.25 + 0.9).
    assert [float(kind[1]) for kind in stats] == pytest.approx([-0.1, 0.69, 3])
    assert [float(kind[0]) for kind in stats] == [0, 0, 0]


def test_what_is_not_to_be_kept_changes_nothing():
    stats = observed([0.5], memory=0.6)
    exact = torch.tensor(-1.0, dtype=torch.float64)
    update_curvature(stats, torch.tensor(1), exact, torch.tensor(False), 0.6)
    assert [float(kind[1]) for kind in stats] == [0.5, 0, 1]


def test_negative_curvature_and_noise_have_no_weight():
    rng, usual = np.random.default_rng(4), np.array([0.3] * 6 + [-0.2, 0.0, 0.25])
    seen = [observed(mean + 0.05 * rng.normal(size=30), 0.95) for mean in usual]
    stats = CurvatureStats(*(torch.stack([one[k][1] for one in seen]) for k in range(3)))
    weights = curvature_weights(stats, 0.95, torch.ones(9, dtype=torch.bool), 1.0)
    assert weights[:6].min() > 0.9
    assert weights[6:8].tolist() == [0, 0]
    assert weights[8] > 0.9
