import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import share as oracle

from secureafl.linalg.rows import (
    assumed_malicious,
    clip_factors,
    deviation_of,
    directions,
    masked,
    mean_of,
    median_of,
    smallest,
    weighted_mean,
)


@given(count=st.integers(1, 10_000), share=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.45, 0.499]))
def test_assumed_malicious_are_the_share_rounded_up_and_a_minority(count, share):
    found = int(assumed_malicious(torch.tensor(count), share))
    assert found == oracle.assumed_malicious(count, share)
    assert found < count / 2


@pytest.mark.parametrize(("count", "share"), [(100, 0.07), (25, 0.28), (100, 0.29)])
def test_assumed_malicious_are_exact_where_the_product_rounds_up(count, share):
    exact = round(100 * share) * count // 100
    assert int(assumed_malicious(torch.tensor(count), share)) == exact


def test_nobody_has_no_malicious_among_them():
    assert int(assumed_malicious(torch.tensor(0), 0.2)) == 0


def test_masked_rows_are_zero_and_the_input_stays_as_it_is():
    values = torch.tensor([[1.0, 2.0], [torch.inf, 3.0]])
    found = masked(values, torch.tensor([True, False]))
    assert found.tolist() == [[1, 2], [0, 0]]
    assert values[1, 0] == torch.inf


def test_smallest_are_marked_and_of_equal_ones_the_first():
    scores = torch.tensor([[3.0, 1.0, 1.0, 2.0], [torch.inf, 0.0, 5.0, 4.0]])
    assert smallest(scores, torch.tensor(1)).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]
    assert smallest(scores, torch.tensor(3)).tolist() == [[0, 1, 1, 1], [0, 1, 1, 1]]
    assert not smallest(scores, torch.tensor(0)).any()


@given(seed=st.integers(0, 999), n=st.integers(1, 9))
def test_means_are_those_of_numpy(seed, n):
    rng = np.random.default_rng(seed)
    rows, weights, present = rng.normal(size=(n, 4)), rng.random(n) + 0.1, rng.random(n) < 0.6
    present[0] = True
    values, chosen = torch.from_numpy(rows), torch.from_numpy(present)
    np.testing.assert_allclose(mean_of(values, chosen), rows[present].mean(axis=0), rtol=1e-12)
    found = weighted_mean(values, torch.from_numpy(weights))
    np.testing.assert_allclose(found, np.average(rows, axis=0, weights=weights), rtol=1e-12)
    numbers = rows[:, 0].copy()
    middle = median_of(torch.from_numpy(numbers), chosen)
    np.testing.assert_allclose(middle, np.median(numbers[present]), rtol=1e-12)


@given(seed=st.integers(0, 999), n=st.integers(1, 9))
def test_deviations_are_those_of_numpy(seed, n):
    rng = np.random.default_rng(seed)
    rows, present = 5 + rng.normal(size=(n, 4)), rng.random(n) < 0.6
    present[0] = True
    mean = torch.from_numpy(rows[present].mean(axis=0))
    found = deviation_of(torch.from_numpy(rows), torch.from_numpy(present), mean)
    np.testing.assert_allclose(found, rows[present].std(axis=0), rtol=1e-12)


def test_deviations_of_large_updates_and_many_coordinates_do_not_overflow():
    rows = torch.tensor([[3e30], [-3e30]]).expand(2, 70_000)
    found = deviation_of(rows, torch.tensor([True, True]), torch.zeros(70_000))
    torch.testing.assert_close(found, rows[0].double())


def test_means_of_nothing_are_zero():
    rows, nobody = torch.ones(3, 2), torch.zeros(3, dtype=torch.bool)
    assert not deviation_of(rows, nobody, torch.zeros(2)).any()
    assert torch.equal(mean_of(rows, nobody), torch.zeros(2))
    assert torch.equal(weighted_mean(rows, torch.zeros(3, dtype=torch.float64)), torch.zeros(2))
    assert median_of(torch.ones(3), nobody) == 0


def test_mean_of_updates_near_the_float32_limit_does_not_overflow():
    rows = torch.full((4, 2), 3e38)
    torch.testing.assert_close(mean_of(rows, torch.ones(4, dtype=torch.bool)), rows[0])


def test_clipping_shortens_what_is_longer_and_nothing_else():
    lengths = torch.tensor([0.0, 1.0, 2.0, 8.0], dtype=torch.float64)
    assert clip_factors(lengths, 2.0).tolist() == [1, 1, 1, 0.25]
    assert clip_factors(lengths, torch.tensor(0.0, dtype=torch.float64)).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1.0, 1e20, 3e38])
def test_directions_have_length_one_or_stay_near_zero(size):
    rows = torch.tensor([[size, 0.0, 0.0], [0.0, 0.0, 0.0], [0.3 * size, -0.4 * size, 0.0]])
    found = directions(rows)
    assert torch.isfinite(found).all()
    lengths = torch.linalg.vector_norm(found, dim=1)
    expected = [1.0, 0.0, 1.0] if size >= 1e-30 else [0.0, 0.0, 0.0]
    torch.testing.assert_close(lengths, torch.tensor(expected), rtol=1e-5, atol=1e-30)
