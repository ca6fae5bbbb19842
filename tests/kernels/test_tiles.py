import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureafl.kernels.reference import inner_products
from secureafl.kernels.tiles import (
    BASE,
    GRADIENT,
    WIDTH,
    allocate,
    as_tiles,
    combine,
    num_tiles,
    products,
    read_client,
)

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
for_both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
SIZES = [1, 5, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH + 37, 777]
sizes = st.sampled_from(SIZES)


@st.composite
def remembered(draw, dtype=torch.float32):
    """Rows [n, slots, d] of random numbers, and the same rows in tiles."""
    n, slots, size = draw(st.integers(1, 6)), draw(st.integers(2, 8)), draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = torch.from_numpy(rng.normal(size=(n, slots, size))).to(dtype)
    return rows, in_tiles(rows), rng


def in_tiles(rows):
    """Each client's rows put in one after the other."""
    vectors = allocate(len(rows), rows.shape[1], rows[0, 0])
    for k, mine in enumerate(rows):
        vectors[:, k] = as_tiles(mine, len(vectors))
    return vectors


def near(found, expected, scale, dtype):
    """No further apart than rounding of what was added up to get there."""
    assert (np.abs(found.double().numpy() - expected) <= TOLERANCE[dtype] * scale).all()


@pytest.mark.parametrize("size", SIZES)
@for_both_dtypes
def test_new_room_is_zero_and_holds_whole_vectors(size, dtype):
    vectors = allocate(3, 4, torch.ones(size, dtype=dtype))
    assert vectors.dtype == dtype
    assert vectors.shape == (num_tiles(size), 3, 4, WIDTH)
    assert 0 <= num_tiles(size) * WIDTH - size < WIDTH
    assert not vectors.any()


@given(case=remembered())
def test_what_was_put_in_is_read_back_bit_for_bit(case):
    rows, vectors, _ = case
    for k, mine in enumerate(rows):
        assert torch.equal(read_client(vectors, torch.tensor(k), rows.shape[2]), mine)


@given(case=remembered())
def test_coordinates_lie_in_order_and_zeros_behind_the_last(case):
    rows, vectors, _ = case
    flat = vectors.permute(1, 2, 0, 3).flatten(2)
    assert torch.equal(flat[:, :, : rows.shape[2]], rows)
    assert not flat[:, :, rows.shape[2] :].any()


def test_what_is_read_is_a_copy():
    vectors = in_tiles(torch.ones(2, 3, 200))
    read_client(vectors, torch.tensor(1), 200).fill_(7)
    assert torch.equal(read_client(vectors, torch.tensor(1), 200), torch.ones(3, 200))


@for_both_dtypes
@given(data=st.data())
def test_combinations_are_what_numpy_says(dtype, data):
    rows, vectors, rng = data.draw(remembered(dtype))
    shares = torch.from_numpy(rng.normal(size=rows.shape[:2])).to(dtype)
    model = torch.from_numpy(rng.normal(size=rows.shape[2])).to(dtype)
    before = vectors.clone(), shares.clone()
    found = combine(vectors, shares, model)
    assert found.dtype == dtype
    parts = rows.double().numpy().copy()
    parts[:, BASE] = model.double().numpy() - parts[:, BASE]
    parts *= shares.double().numpy()[:, :, None]
    near(found, parts.sum(axis=1), np.abs(parts).sum(axis=1) + np.abs(model.numpy()), dtype)
    assert torch.equal(vectors, before[0])
    assert torch.equal(shares, before[1])


def test_small_drift_of_a_large_model_keeps_its_digits():
    rows = torch.zeros(1, 2, 300)
    rows[0, BASE] = 1e4
    model = torch.nextafter(rows[0, BASE], torch.tensor(torch.inf))
    found = combine(in_tiles(rows), torch.tensor([[0.0, 1 / 3]]), model)
    drift = (model - rows[0, BASE])[None]
    np.testing.assert_allclose(found, drift / 3, rtol=1e-6)


@for_both_dtypes
@given(data=st.data())
def test_products_with_one_vector_are_what_numpy_says_but_none_of_uploads(dtype, data):
    rows, vectors, rng = data.draw(remembered(dtype))
    vector = torch.from_numpy(rng.normal(size=rows.shape[2])).to(dtype)
    found = products(vectors, vector)
    assert found.dtype == torch.float64
    one, other = rows.double().numpy(), vector.double().numpy()
    expected = one @ other
    expected[:, GRADIENT] = 0
    near(found, expected, np.abs(one) @ np.abs(other), dtype)


@for_both_dtypes
@given(n=st.integers(2, 14), size=sizes, seed=st.integers(0, 2**32 - 1))
def test_inner_products_with_each_other_and_the_model_are_what_numpy_says(dtype, n, size, seed):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(n, size))).to(dtype)
    model = torch.from_numpy(rng.normal(size=size)).to(dtype)
    every = torch.cat([rows, model[None]]).double().numpy()
    expected = every @ every.T
    expected[GRADIENT, 1:] = expected[1:, GRADIENT] = 0  # the upload only with itself
    found = inner_products(rows, model)
    assert found.dtype == torch.float64
    assert torch.equal(found, found.T)
    near(found, expected, np.abs(every) @ np.abs(every).T, torch.float64)


def test_long_sums_of_products_are_added_in_float64():
    tiles = 3000
    ones = torch.ones(2, tiles * WIDTH)
    ones[:, :WIDTH] = torch.tensor([2.0**14] + [0.0] * (WIDTH - 1))
    total = 2**28 + (tiles - 1) * WIDTH  # next to 2^28, float32 loses 16
    among = inner_products(ones, ones[0])
    assert among.tolist() == [[total, 0, 0], [0, total, total], [0, total, total]]
    assert products(in_tiles(ones[None]), ones[0]).tolist() == [[0, total]]
