import pytest
import torch

from secureafl.linalg.vectors import (
    choose,
    clipped,
    computed_if,
    cosine,
    exact_norm,
    exactly_scaled,
    norm,
    row,
    scaled,
    set_row,
    zero_unless,
)


def test_row_is_a_copy():
    matrix = torch.arange(6.0).view(3, 2)
    row(matrix, torch.tensor(1)).zero_()
    assert matrix[1].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("keep", [True, False])
def test_row_is_written_only_where_it_is_to_be_kept(keep):
    matrix = torch.zeros(3, 2)
    set_row(matrix, torch.tensor(2), torch.tensor([5.0, torch.nan]), torch.tensor(keep))
    assert not matrix[:2].any()
    assert float(matrix[2, 0]) == (5.0 if keep else 0.0)
    assert bool(matrix.isnan().any()) == keep  # what is not kept leaves no NaN behind


@pytest.mark.parametrize("length", [1e-15, 1.0, 1e15, 1e18])
def test_norm_of_anything_a_server_takes_is_right(length):
    vector = torch.full((10_000,), length / 100)
    assert float(norm(vector)) == pytest.approx(length, rel=1e-5)
    assert float(norm(vector.double())) == pytest.approx(length, rel=1e-5)


def test_norm_is_taken_over_the_last_axis():
    assert norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [5.0, 0.0]


def test_norm_beyond_float32_is_infinite_and_not_small():
    assert float(norm(torch.full((4,), 1e30))) == torch.inf
    assert float(norm(torch.full((4,), 1e30, dtype=torch.float64))) == pytest.approx(2e30)


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_norm_shows_every_value_that_is_not_finite(spoilt):
    vector = torch.ones(1000)
    vector[517] = spoilt
    assert not torch.isfinite(norm(vector))


YES, NO = torch.tensor(True), torch.tensor(False)
# On "meta", as on a GPU, no flag may be read: that raises.
UNREADABLE = torch.ones((), dtype=torch.bool, device="meta")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scaled_vector_keeps_its_dtype_and_leaves_the_old_one_alone(dtype):
    vector = torch.tensor([1.0, -2.0], dtype=dtype)
    found = scaled(vector, torch.tensor(0.5, dtype=torch.float64))
    assert found.dtype == dtype
    assert found.tolist() == [0.5, -1.0]
    assert vector.tolist() == [1.0, -2.0]


def test_vector_times_one_is_not_copied():
    vector = torch.ones(3)
    assert scaled(vector, torch.tensor(1.0, dtype=torch.float64)) is vector


def test_one_of_two_tensors_is_chosen_without_a_copy():
    one, other = torch.ones(3), torch.zeros(3)
    assert choose(YES, one, other) is one
    assert choose(NO, one, other) is other


def test_vector_is_zero_unless_the_flag_holds():
    vector = torch.tensor([1.0, torch.nan, torch.inf])
    assert zero_unless(YES, vector) is vector
    zeros = zero_unless(NO, vector)
    assert zeros.tolist() == [0.0, 0.0, 0.0]
    assert zeros.dtype == vector.dtype
    assert vector[0] == 1


def test_nothing_off_the_host_is_read():
    one = torch.ones(3, device="meta")
    scale = torch.ones((), dtype=torch.float64, device="meta")
    made = scaled(one, scale), choose(UNREADABLE, one, one), zero_unless(UNREADABLE, one)
    assert all(tensor.shape == (3,) for tensor in made)
    assert all(tensor.dtype == torch.float32 for tensor in made)


class Elsewhere(torch.Tensor):
    """Numbers of this CPU that pass for those of another device."""

    device = torch.device("cuda")


def test_other_devices_get_the_same_values():
    one, other = torch.tensor([1.0, torch.inf]), torch.tensor([3.0, 4.0])
    half = torch.tensor(0.5, dtype=torch.float64)

    def same(found, expected):
        assert found.dtype == torch.float32
        return torch.equal(found.as_subclass(torch.Tensor), expected)

    for flag in (YES, NO):
        there = flag.as_subclass(Elsewhere)
        assert same(choose(there, one, other), choose(flag, one, other))
        assert same(zero_unless(there, one), zero_unless(flag, one))
    for scale in (half, 2 * half):
        assert same(scaled(one, scale.as_subclass(Elsewhere)), scaled(one, scale))


def test_scaling_by_a_factor_beyond_float32_works_if_the_result_fits():
    tiny = torch.full((3,), 1e-40)
    found = exactly_scaled(tiny, torch.tensor(1e50, dtype=torch.float64))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((3,), 1e10), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("radius", "length"), [(1.0, 1.0), (5.0, 5.0), (6.0, 5.0), (1e30, 5.0)])
def test_clipping_bounds_the_norm_and_keeps_the_direction(radius, length):
    vector = torch.tensor([3.0, -4.0])
    found = clipped(vector, torch.tensor(radius, dtype=torch.float64))
    assert float(exact_norm(found)) == pytest.approx(length)
    torch.testing.assert_close(found / norm(found), vector / 5)


def test_zero_is_clipped_to_zero():
    zero = torch.zeros(3)
    assert torch.equal(clipped(zero, torch.tensor(0.0, dtype=torch.float64)), zero)


@pytest.mark.parametrize("size", [1e-40, 1.0, 1e30])
def test_cosine_neither_over_nor_underflows(size):
    one, other = torch.tensor([size, 0.0]), torch.tensor([size, size])
    assert float(cosine(one, other)) == pytest.approx(0.5**0.5)
    assert float(cosine(one, -other)) == pytest.approx(-(0.5**0.5))
    assert float(cosine(one, torch.zeros(2))) == 0.0


def test_nothing_unwanted_is_computed_on_the_cpu():
    calls = []

    def compute():
        calls.append(1)
        return torch.ones(2)

    zero = torch.zeros(2)
    assert computed_if(torch.tensor(False), compute, zero) is zero
    assert not calls
    assert torch.equal(computed_if(torch.tensor(True), compute, zero), torch.ones(2))


def test_elsewhere_both_are_made_and_one_is_chosen():
    meta = torch.zeros((), dtype=torch.bool, device="meta")
    found = computed_if(meta, lambda: torch.ones(2, device="meta"), torch.zeros(2, device="meta"))
    assert found.shape == (2,)
