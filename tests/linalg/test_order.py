import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureafl.linalg import order
from secureafl.linalg.order import order_mean, order_mean_reference, ordered


def expected_mean(values, present, first, last):
    rows = values.double().numpy()[present.numpy()]
    return np.sort(rows, axis=0)[first : last + 1].mean(axis=0)


@st.composite
def order_cases(draw, dtype=torch.float32):
    n, d = draw(st.integers(1, 60)), draw(st.sampled_from([1, 3, 17]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.normal(size=(n, d))
    if draw(st.booleans()):
        values = np.round(values)  # ties
    present = rng.random(n) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    present[rng.integers(n)] = True
    first = draw(st.integers(0, int(present.sum()) - 1))
    last = draw(st.integers(first, int(present.sum()) - 1))
    values = torch.from_numpy(values).to(dtype)
    values[~torch.from_numpy(present)] = draw(
        st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e30])
    )
    return values, torch.from_numpy(present), first, last


@given(case=order_cases())
def test_both_order_means_agree_with_numpy_whatever_absent_rows_hold(case):
    values, present, first, last = case
    expected = expected_mean(values, present, first, last)
    for function in (order_mean, order_mean_reference):
        found = function(values, present, torch.tensor(first), torch.tensor(last))
        assert found.dtype == values.dtype
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@given(case=order_cases(dtype=torch.float64))
def test_both_order_means_agree_tightly_in_float64(case):
    values, present, first, last = case
    expected = expected_mean(values, present, first, last)
    for function in (order_mean, order_mean_reference):
        found = function(values, present, torch.tensor(first), torch.tensor(last))
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 49, 50, 60])
def test_one_or_two_middle_values_agree_bit_for_bit(n):
    values = torch.randn(n, 37, generator=torch.Generator().manual_seed(n))
    present = torch.ones(n, dtype=torch.bool)
    first, last = torch.tensor((n - 1) // 2), torch.tensor(n // 2)
    fast = order_mean(values, present, first, last)
    plain = order_mean_reference(values, present, first, last)
    assert torch.equal(fast, plain)
    assert np.array_equal(fast.numpy(), np.median(values.numpy(), axis=0))


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("tiles", [1, 2])
def test_columns_at_the_seams_of_tiles_are_right(tiles, extra):
    d = tiles * order._TILE + extra
    values = torch.randn(5, d, generator=torch.Generator().manual_seed(d))
    present = torch.tensor([True, True, False, True, True])
    found = order_mean(values, present, torch.tensor(1), torch.tensor(2))
    np.testing.assert_allclose(
        found.numpy(), expected_mean(values, present, 1, 2), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("function", [order_mean, order_mean_reference])
def test_two_middle_values_near_the_float_limit_do_not_overflow(function):
    values = torch.full((2, 3), 3e38)
    both = torch.ones(2, dtype=torch.bool)
    found = function(values, both, torch.tensor(0), torch.tensor(1))
    assert torch.equal(found, values[0])


@pytest.mark.parametrize("function", [order_mean, order_mean_reference])
@pytest.mark.parametrize("absent", [0, 1])
def test_inputs_are_not_modified(function, absent):
    values = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    present = torch.arange(6) >= absent
    before = values.clone(), present.clone()
    function(values, present, torch.tensor(1), torch.tensor(3))
    assert torch.equal(values, before[0])
    assert torch.equal(present, before[1])


def test_views_with_gaps_between_values_are_read_correctly():
    wide = torch.randn(7, 20, generator=torch.Generator().manual_seed(2))
    strided = wide[:, ::2]
    present = torch.ones(7, dtype=torch.bool)
    found = order_mean(strided, present, torch.tensor(3), torch.tensor(3))
    assert torch.equal(found, strided.contiguous().median(dim=0).values)


@pytest.mark.parametrize("tile", [1, 5, 2048])
@given(case=order_cases())
def test_columns_ascend_and_end_in_infinity_where_rows_are_absent(tile, case):
    values, present, _, _ = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_TILE", tile)
        copy = values.clone()
        found = ordered(values, present).numpy()
    assert torch.equal(values.nan_to_num(), copy.nan_to_num())
    count = int(present.sum())
    assert np.array_equal(found[:count], np.sort(values[present].numpy(), axis=0))
    assert (found[count:] == np.inf).all()
