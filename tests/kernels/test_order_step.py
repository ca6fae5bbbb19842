"""The server step in one compiled pass against the plain one."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from stepping import MEDIAN, RULES, Case, always_compiled, same_bits, some, window

from secureafl.aggregators import Mean, Median, TrimmedMean
from secureafl.core.types import Entry
from secureafl.kernels import reference
from secureafl.kernels.step import Selection
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH

SEVERAL_BLOCKS = 16 * 32 * WIDTH + 85  # coordinates; blocks of tiles then have an odd size
SIZES = [1, 15, 16, 17, 33, 300, 1000, SEVERAL_BLOCKS]
NUMBERS = [1, 2, 7, 50, 51, 64, 65]  # of clients; compiling takes most of the time
for_every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
garbage = st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e30])
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def cpu():
    pytest.importorskip("llvmlite")
    with always_compiled() as module:
        yield module


def exactly_equal(case, version, rule=MEDIAN):
    """Direction, inner products and memory; right for small whole numbers only."""
    (step, memory), (plain, plain_memory) = case.step(version, rule), case.step(reference, rule)
    assert all(torch.equal(a, b) for a, b in zip(step, plain, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(memory, plain_memory, strict=True))


@for_every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("absent", [0, 3])
@pytest.mark.parametrize("n", [1, 2, 8, 13])
def test_plain_step_is_what_numpy_says(rule, dtype, absent, n):
    case = Case(n, n, size=40, present=some(n, n, max(1, n - absent)), dtype=dtype)
    step, memory = case.step(reference, rule)
    rows, weights = case.renewed().double().numpy(), case.weights.double().numpy()
    shares, present = case.shares.numpy(), case.present.numpy()
    drifts = rows.copy()
    drifts[:, BASE] = weights - rows[:, BASE]
    ordered = np.sort(np.einsum("ns,nsd->nd", shares, drifts)[present], axis=0)
    first, last = rule(case.present.sum())
    direction = ordered[int(first) : int(last) + 1].mean(axis=0)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10}
    np.testing.assert_allclose(step.direction, direction, **close)
    along = rows @ step.direction.double().numpy()
    along[:, GRADIENT] = 0
    np.testing.assert_allclose(step.along, along, **close, err_msg="along")
    np.testing.assert_allclose(step.with_model, weights @ direction, **close)
    np.testing.assert_allclose(step.squared, direction @ direction, **close)
    apart = case.arrival.gradient.double().numpy() - direction
    np.testing.assert_allclose(step.distance, np.linalg.norm(apart), **close)
    expected = torch.from_numpy(rows).to(dtype)
    tiles = memory.vectors.permute(1, 2, 0, 3).flatten(2)
    assert torch.equal(tiles[:, :, :40], expected)
    assert not tiles[:, :, 40:].any()


@for_every_rule
@pytest.mark.parametrize("n", NUMBERS)
def test_compiled_step_equals_the_plain_one_with_everybody_present(cpu, rule, n):
    Case(n, n).check_step(cpu, rule)


@for_every_rule
@pytest.mark.parametrize("count", [1000, 741, 500, 2, 1])
def test_compiled_step_equals_the_plain_one_for_a_thousand_clients(cpu, rule, count):
    case = Case(count, 1000, slots=3, size=17, present=some(1, 1000, count))
    case.spoil_absent(torch.nan).check_step(cpu, rule)


@pytest.mark.parametrize("slots", range(2, 17))
def test_any_number_of_vectors_of_any_size_is_combined(cpu, slots):
    for size in (1, 17, 300, SEVERAL_BLOCKS):
        Case(slots, 3, slots, size).check_step(cpu)
    exactly_equal(Case(slots, 3, slots, 33, whole=True), cpu, window(1))


@for_every_rule
@pytest.mark.parametrize("size", SIZES)
def test_any_size_is_right_when_some_are_absent(cpu, rule, size):
    Case(size, 7, size=size, present=some(size, 7, 4)).spoil_absent(torch.nan).check_step(cpu, rule)


@given(
    seed=seeds,
    n=st.sampled_from(NUMBERS),
    data=st.data(),
    rule=st.sampled_from(sorted(RULES)),
    spoilt=garbage,
)
def test_absent_clients_do_not_matter_whatever_is_in_their_rows(cpu, seed, n, data, rule, spoilt):
    present = some(seed, n, data.draw(st.integers(1, n)))
    case = Case(seed, n, present=present, size=150)
    clean, _ = case.step(cpu, RULES[rule])
    case.spoil_absent(spoilt).check_step(cpu, RULES[rule])
    spoilt_step, _ = case.step(cpu, RULES[rule])
    assert same_bits(spoilt_step.direction, clean.direction)
    assert same_bits(spoilt_step.along[present], clean.along[present])
    assert same_bits(spoilt_step.squared, clean.squared)


@for_every_rule
@pytest.mark.parametrize("n", [2, 7, 50, 65])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients_present_are_enough(cpu, rule, n, count):
    present = some(count, n, min(count, n))
    Case(n, n, present=present).spoil_absent(torch.inf).check_step(cpu, rule)


def test_lone_client_present_gets_its_way(cpu):
    case = Case(0, 50, present=some(0, 50, 1), whole=True).spoil_absent(torch.nan)
    for rule in (Median().ranks, Mean().ranks, TrimmedMean(0.2).ranks):
        step, _ = case.step(cpu, rule)
        assert torch.equal(step.direction, case.step(reference, rule)[0].direction)


@given(
    seed=seeds,
    n=st.sampled_from(NUMBERS),
    share=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    data=st.data(),
)
def test_every_order_statistic_of_tied_whole_numbers_is_exact(cpu, seed, n, share, data):
    count = max(1, round(share * n))
    case = Case(seed, n, size=130, present=some(seed, n, count), whole=True)
    exactly_equal(case, cpu, window(data.draw(st.integers(0, count - 1))))
    exactly_equal(case, cpu, MEDIAN)


@pytest.mark.parametrize("n", [7, 8])
def test_every_order_statistic_is_right_whoever_is_absent(cpu, n):
    for count in range(1, n + 1):
        for rank in range(count):
            case = Case(rank, n, size=33, present=some(rank, n, count), whole=True)
            exactly_equal(case, cpu, window(rank))


@given(
    seed=seeds,
    n=st.sampled_from(NUMBERS),
    share=st.floats(0, 1),
    data=st.data(),
)
@example(0, 7, 0.5, None)
def test_any_window_of_order_statistics_is_averaged(cpu, seed, n, share, data):
    count = max(1, round(share * n))
    first = data.draw(st.integers(0, count - 1)) if data else 0
    last = data.draw(st.integers(first, count - 1)) if data else count - 1
    case = Case(seed, n, size=65, present=some(seed, n, count))
    case.check_step(cpu, window(first, last))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("entry_keep", [True, False])
@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("size", [17, SEVERAL_BLOCKS])
def test_new_rows_go_in_before_anything_is_combined_where_they_are_kept(
    cpu, keep, entry_keep, present, size
):
    case = Case(5, 7, size=size, whole=True)
    case.keep = torch.tensor(keep)
    case.entry = case.entry._replace(keep=torch.tensor(entry_keep))
    case.present[case.arrival.client] = present
    exactly_equal(case, cpu, window(2))


@pytest.mark.parametrize(
    ("places", "parts"),
    [
        ([], ()),
        ([3], ("upload",)),
        ([0], ("step",)),
        ([5], ("change",)),
        ([4, 1], ("step", "change")),
        ([2, 3], ("change", "step")),
        ([5, 0, 2], ("upload", "step", "change")),
        ([0, 1, 2, 3, 4, 5], ("step", "step", "upload", "change", "upload", "change")),
    ],
    ids=str,
)
def test_estimator_may_have_any_parts_of_an_upload_in_any_places(cpu, places, parts):
    case = Case(6, 7, whole=True)
    case.entry = Entry(torch.tensor(places, dtype=torch.int64), parts, torch.tensor(True))
    exactly_equal(case, cpu)


@pytest.mark.parametrize("client", range(7))
def test_upload_of_any_client_reaches_its_own_rows_only(cpu, client):
    case = Case(7, 7, whole=True)
    case.arrival = case.arrival._replace(client=torch.tensor(client))
    _, memory = case.step(cpu)
    before = case.memory()
    others = torch.arange(7) != client
    assert torch.equal(memory.vectors[:, others], before.vectors[:, others])
    assert torch.equal(memory.vectors[:, client, OWN], before.vectors[:, client, OWN])
    assert memory.known.tolist() == [bool(k) or i == client for i, k in enumerate(before.known)]
    exactly_equal(case, cpu)


@for_every_rule
@pytest.mark.parametrize("attackers", [1, 3, 7])
@pytest.mark.parametrize("size", [1e12, 1e17])
def test_huge_uploads_are_ordered_like_any_other(cpu, rule, attackers, size):
    case = Case(attackers, 7)
    case.rows[:attackers] *= size  # 300 coordinates: as long as the server lets pass
    case.check_step(cpu, rule)


@pytest.mark.parametrize("n", [2, 50, 65])
def test_middle_values_near_the_float_limit_do_not_overflow(cpu, n):
    case = Case(0, n, slots=2)
    case.rows[:, GRADIENT], case.rows[:, BASE] = 3e38, 0
    case.arrival = case.arrival._replace(gradient=case.rows[0, GRADIENT], base=torch.zeros(300))
    case.shares[:, GRADIENT], case.shares[:, BASE] = 1, 0
    case.weights = torch.zeros(300)
    step, _ = case.step(cpu)
    assert torch.equal(step.direction, case.rows[0, GRADIENT])


@pytest.mark.parametrize(
    "rule", [Median().ranks, Mean().ranks, TrimmedMean(0.2).ranks], ids=lambda r: str(r.__self__)
)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 65])
def test_nobody_present_raises_nothing_and_the_upload_is_still_remembered(cpu, rule, n):
    case = Case(0, n, present=torch.zeros(n, dtype=torch.bool), whole=True)
    step, memory = case.step(cpu, rule)
    assert step.direction.shape == case.weights.shape
    assert step.along.shape == case.shares.shape
    plain = case.step(reference, rule)[1]
    assert all(torch.equal(a, b) for a, b in zip(memory, plain, strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 66])
def test_no_row_is_read_that_is_not_there(cpu, n):
    for count in range(n + 1):
        present = some(count, n, count)
        for rule in (Median().ranks, Mean().ranks, TrimmedMean(0.2).ranks):
            order = cpu._order(present.numpy().tobytes(), *map(int, rule(present.sum())))
            low, high = order.arguments[5:7]
            assert low >= 0
            assert high < order.rows


@for_every_rule
def test_nothing_is_modified_but_the_memory(cpu, rule):
    case = Case(3, 7, present=some(3, 7, 5))
    memory, selection = case.memory(), case.selection(rule)
    shown = [*selection, *case.arrival, case.entry.places, case.entry.keep, case.keep, case.weights]
    copies = [tensor.clone() for tensor in shown]
    cpu.order_step(memory, case.arrival, case.entry, case.keep, case.weights, selection)
    assert all(torch.equal(a, b) for a, b in zip(shown, copies, strict=True))


def test_directions_of_two_steps_do_not_share_memory(cpu):
    case = Case(4, 7)
    one, _ = case.step(cpu)
    kept = [tensor.clone() for tensor in one]
    other, _ = Case(5, 7).step(cpu)
    assert not torch.equal(one.direction, other.direction)
    assert all(torch.equal(a, b) for a, b in zip(one, kept, strict=True))


def test_upload_that_answers_to_the_current_model_may_share_its_memory(cpu):
    case = Case(8, 7, whole=True)
    case.arrival = case.arrival._replace(base=case.weights)
    exactly_equal(case, cpu)


def test_upload_and_model_with_gaps_between_their_numbers_are_read_correctly(cpu):
    case = Case(9, 7, whole=True)
    gradient, base, weights = (
        torch.stack([vector, torch.full_like(vector, torch.nan)], dim=1)[:, 0]
        for vector in (case.arrival.gradient, case.arrival.base, case.weights)
    )
    case.arrival, case.weights = case.arrival._replace(gradient=gradient, base=base), weights
    assert not weights.is_contiguous()
    exactly_equal(case, cpu)
    torch.testing.assert_close(case.differences(cpu), case.differences(reference), rtol=0, atol=0)


def test_shares_that_lie_column_by_column_are_read_correctly(cpu):
    # As an estimator of one's own makes them that stacks a column for each vector.
    case = Case(10, 7, whole=True)
    case.shares = torch.stack(list(case.shares.T)).T
    assert not case.shares.is_contiguous()
    exactly_equal(case, cpu)


def test_clients_present_that_lie_apart_in_memory_are_read_correctly(cpu):
    case = Case(11, 7, present=some(11, 7, 4), whole=True)
    case.present = torch.stack([case.present, ~case.present], dim=1)[:, 0]
    assert not case.present.is_contiguous()
    exactly_equal(case, cpu)


def test_default_dtype_of_torch_does_not_matter(cpu):
    case = Case(12, 7)
    expected, _ = case.step(cpu)
    torch.set_default_dtype(torch.float64)
    try:
        step, _ = case.step(cpu)
    finally:
        torch.set_default_dtype(torch.float32)
    assert step.direction.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(step, expected, strict=True))


def test_long_sums_of_products_are_added_in_float64(cpu):
    # Next to 2^28, float32 loses the 16 that every further tile adds.
    tiles = 100
    ones = torch.ones(tiles, WIDTH)
    ones[:32] = 0
    ones[0, 0] = 2**14
    ones = ones.flatten()
    total = 2**28 + (tiles - 32) * WIDTH
    case = Case(13, 2, slots=3, size=ones.numel())
    case.rows[:], case.weights = ones, ones
    case.shares = torch.tensor([[1.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    case.arrival = case.arrival._replace(gradient=ones, base=ones)
    step, memory = case.step(cpu)
    assert torch.equal(step.direction, ones)
    assert step.along[:, 1:].tolist() == [[total] * 2] * 2
    assert step.with_model == step.squared == memory.squared == total
    client = int(case.arrival.client)
    assert memory.gram[client].tolist() == [[total, 0, 0], [0, total, total], [0, total, total]]
    assert memory.along[client].tolist() == [0, total, total]
    assert case.store_upload(cpu).gram[client].tolist() == memory.gram[client].tolist()
    assert case.store_upload(cpu).squared == total


def test_choice_of_shares_in_float32_is_taken_too(cpu):
    case = Case(14, 7, whole=True)
    selection = case.selection(MEDIAN)
    assert isinstance(selection, Selection)
    narrow = selection._replace(shares=selection.shares.float())
    found, _ = cpu.order_step(
        case.memory(), case.arrival, case.entry, case.keep, case.weights, narrow
    )
    assert torch.equal(found.direction, case.step(reference)[0].direction)
