import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureafl.linalg import pairwise
from secureafl.linalg.pairwise import cosines, inner_products, products_along, squared_distances


def exact(rows):
    return ((rows[:, None] - rows) ** 2).sum(axis=2)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 9),
    scale=st.sampled_from([1e-30, 1.0, 1e20]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_distances_are_those_of_numpy_and_infinite_to_who_is_absent(seed, n, scale, dtype):
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(scale * rng.normal(size=(n, 6))).to(dtype)
    present = rng.random(n) < 0.7
    present[0] = True
    values[~present] = 1e30
    found = squared_distances(values, torch.from_numpy(present)).numpy()
    pairs = present[:, None] & present
    assert (found[~pairs] == np.inf).all()
    expected = exact(values.double().numpy())
    np.testing.assert_allclose(found[pairs], expected[pairs], rtol=1e-9, atol=1e-11 * scale**2)
    assert np.array_equal(found, found.T)


@pytest.mark.parametrize("offset", [1e2, 1e6, 1e12])
def test_what_rows_have_in_common_does_not_drown_their_distances(offset):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 50)) + offset
    everybody = torch.ones(6, dtype=torch.bool)
    found = squared_distances(torch.from_numpy(values), everybody).numpy()
    np.testing.assert_allclose(found, exact(values), rtol=1e-9)


def test_distances_among_small_rows_survive_a_huge_one():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=(5, 30)), np.full((1, 30), 1e19)])
    found = squared_distances(torch.from_numpy(values), torch.ones(6, dtype=torch.bool)).numpy()
    np.testing.assert_allclose(found, exact(values), rtol=1e-9)


@pytest.mark.parametrize("size", [3, 1000, 70_000])
def test_equal_rows_are_at_distance_zero_exactly(size):
    row = torch.randn(size, generator=torch.Generator().manual_seed(0))
    values = torch.stack([0.1 * row.flip(0), row, row, 5 * row, 5 * row])
    found = squared_distances(values, torch.ones(5, dtype=torch.bool))
    assert (found == 0).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
    ]


def test_blocks_of_coordinates_add_up(monkeypatch):
    rows = torch.randn(4, 23, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(pairwise, "_BLOCK", 5)
    expected = rows.double() @ rows.double().T
    torch.testing.assert_close(inner_products(rows), expected, rtol=1e-12, atol=1e-12)
    moved = rows.double() - rows[2].double()
    torch.testing.assert_close(inner_products(rows, rows[2]), moved @ moved.T)


@given(seed=st.integers(0, 999), exponents=st.lists(st.integers(-30, 20), min_size=2, max_size=6))
def test_cosines_know_no_lengths(seed, exponents):
    rows = np.random.default_rng(seed).normal(size=(len(exponents), 4))
    scaled = torch.from_numpy(rows * 10.0 ** np.array(exponents)[:, None])
    lengths = np.linalg.norm(rows, axis=1)
    expected = rows @ rows.T / lengths[:, None] / lengths
    np.testing.assert_allclose(cosines(scaled), expected, atol=2e-12)


def test_cosine_with_nothing_is_zero_and_with_a_twin_one():
    rows = torch.tensor([[0.0, 0.0], [0.1, 0.3], [0.7, 2.1], [-0.1, -0.3]])
    expected = [[0, 0, 0, 0], [0, 1, 1, -1], [0, 1, 1, -1], [0, -1, -1, 1]]
    found = cosines(rows)
    np.testing.assert_allclose(found, expected, atol=1e-7)  # float32 rows are not quite parallel
    assert found[1, 1] == 1


@pytest.mark.parametrize("size", [1, 50, 70_000])
def test_products_along_a_vector_are_those_of_numpy(size):
    rng = np.random.default_rng(2)
    rows, (vector, origin) = rng.normal(size=(4, size)), rng.normal(size=(2, size))
    arrays = map(torch.from_numpy, (rows, vector, origin))
    np.testing.assert_allclose(products_along(*arrays), (rows - origin) @ vector, atol=1e-9)
    found = products_along(torch.from_numpy(rows), torch.from_numpy(vector))
    np.testing.assert_allclose(found, rows @ vector, atol=1e-9)


def test_products_along_a_vector_do_not_overflow():
    rows, vector = torch.full((2, 3), 1e30), torch.full((3,), 1e30)
    assert products_along(rows, vector).tolist() == [pytest.approx(3e60)] * 2
