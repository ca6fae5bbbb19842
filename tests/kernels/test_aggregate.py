"""The fused pass against the plain one."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from secureafl.aggregators import Mean, Median, TrimmedMean
from secureafl.core.types import Arrival, ServerView
from secureafl.defenses import SecureAfl
from secureafl.kernels import fused
from secureafl.kernels.aggregate import combined_order_mean_reference
from secureafl.kernels.fused import fused_order_mean, has_fused
from secureafl.kernels.tiles import BASE, WIDTH, as_tiles

# Per number of what is added up on the way; sums of n or of WIDTH numbers round in any order.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
DTYPES = [torch.float32, torch.float64]
for_both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
RULES = {
    "median": Median().ranks,
    "mean": Mean().ranks,
    "trimmed_mean": TrimmedMean(0.2).ranks,
    "trimmed_mean_hard": TrimmedMean(0.45).ranks,
    "smallest": lambda count: (torch.zeros_like(count), torch.zeros_like(count)),
    "largest": lambda count: (count - 1, count - 1),
    "one_off_middle": lambda count: (count // 3, count // 3),
    "lower_half": lambda count: (torch.zeros_like(count), count // 2),
}


@pytest.fixture(scope="module", autouse=True)
def _numba():
    pytest.importorskip("numba")


class Case:
    """Random vectors of n clients, their shares, a model, and who is present."""

    def __init__(self, seed, n, slots=8, size=300, present=None, dtype=torch.float32, whole=False):
        rng = np.random.default_rng(seed)

        def draw(*shape):
            return rng.integers(-3, 4, size=shape) if whole else rng.normal(size=shape)

        self.rows = torch.from_numpy(draw(n, slots, size)).to(dtype)
        self.shares = torch.from_numpy(draw(n, slots)).to(dtype)
        self.model = torch.from_numpy(draw(size)).to(dtype)
        self.present = torch.ones(n, dtype=torch.bool) if present is None else present
        self.dtype = dtype

    def vectors(self):
        n, slots, size = self.rows.shape
        tiles = as_tiles(self.rows.flatten(0, 1), -(-size // WIDTH))
        return tiles.reshape(len(tiles), n, slots, WIDTH).contiguous()

    def spoil_absent(self, garbage):
        self.rows[~self.present] = garbage
        return self

    def fused(self, rule):
        first, last = rule(self.present.sum())
        return fused_order_mean(
            self.vectors(), self.shares, self.model, self.present, int(first), int(last)
        )

    def plain(self, rule):
        first, last = rule(self.present.sum())
        return combined_order_mean_reference(
            self.vectors(), self.shares, self.model, self.present, first, last
        )

    def check(self, rule):
        """Direction and inner products are those of the plain version, up to rounding."""
        direction, along = self.fused(rule)
        expected, expected_along = self.plain(rule)
        assert direction.dtype == self.dtype
        assert along.dtype == torch.float64
        assert torch.isfinite(direction).all()
        scale = self._scale()
        error = (direction.double() - expected.double()).abs()
        assert (error <= TOLERANCE[self.dtype] * scale).all()
        room = self.rows[self.present].double().abs() @ scale
        told = torch.isfinite(expected_along[self.present])  # else the products overflow float32
        error = (along - expected_along)[self.present].abs()
        assert (error <= TOLERANCE[self.dtype] * room)[told].all()

    def _scale(self):
        """Largest sum of absolute values behind any client's number, per coordinate."""
        rows, shares = self.rows[self.present].double().abs(), self.shares[self.present].double()
        rows[:, BASE] += self.model.double().abs()
        return torch.einsum("nsd,ns->nd", rows, shares.abs()).amax(dim=0)


def some(seed, n, count):
    """Exactly `count` of n clients."""
    chosen = np.random.default_rng(seed).permutation(n)[:count]
    present = torch.zeros(n, dtype=torch.bool)
    present[torch.from_numpy(chosen)] = True
    return present


for_every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
garbage = st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e30])


@for_every_rule
@for_both_dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 7, 50, 51])
def test_fused_pass_equals_the_plain_one_with_everybody_present(rule, dtype, n):
    Case(n, n, dtype=dtype).check(rule)


@for_every_rule
@for_both_dtypes
def test_fused_pass_equals_the_plain_one_for_a_thousand_clients(rule, dtype):
    Case(0, 1000, slots=3, size=17, dtype=dtype).check(rule)
    absent = Case(1, 1000, slots=3, size=17, present=some(1, 1000, 741), dtype=dtype)
    absent.spoil_absent(torch.nan).check(rule)


@for_both_dtypes
@pytest.mark.parametrize("slots", [2, 3, 6, 8, 12])
@pytest.mark.parametrize("size", [1, WIDTH - 1, WIDTH, WIDTH + 1, 5 * WIDTH + 77])
def test_any_number_of_vectors_of_any_size_is_combined(dtype, slots, size):
    Case(slots, 9, slots, size, dtype=dtype).check(Median().ranks)


@for_both_dtypes
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 3, 7, 8, 50, 51]),
    data=st.data(),
    rule=st.sampled_from(sorted(RULES)),
    spoilt=garbage,
)
def test_absent_clients_do_not_matter_whatever_is_in_their_rows(dtype, seed, n, data, rule, spoilt):
    present = some(seed, n, data.draw(st.integers(1, n)))
    case = Case(seed, n, present=present, size=150, dtype=dtype)
    clean, _ = case.fused(RULES[rule])
    case.spoil_absent(spoilt).check(RULES[rule])
    assert torch.equal(case.fused(RULES[rule])[0], clean)


@for_every_rule
@pytest.mark.parametrize("n", [2, 7, 50])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients_present_are_enough(rule, n, count):
    present = some(count, n, min(count, n))
    Case(n, n, present=present).spoil_absent(torch.inf).check(rule)


def test_lone_client_present_gets_its_way():
    present = some(0, 20, 1)
    case = Case(0, 20, present=present, whole=True).spoil_absent(torch.nan)
    for ranks in (Median().ranks, Mean().ranks, TrimmedMean(0.2).ranks):
        assert torch.equal(case.fused(ranks)[0], case.plain(ranks)[0])


@for_both_dtypes
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    data=st.data(),
)
def test_every_order_statistic_of_tied_whole_numbers_is_exact(dtype, seed, n, share, data):
    count = max(1, round(share * n))
    case = Case(seed, n, slots=4, size=130, present=some(seed, n, count), dtype=dtype, whole=True)
    rank = torch.tensor(data.draw(st.integers(0, count - 1)))
    for ranks in (lambda _: (rank, rank), Median().ranks):
        assert torch.equal(case.fused(ranks)[0], case.plain(ranks)[0])


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), share=st.floats(0, 1), data=st.data())
@example(0, 7, 0.5, None)
def test_any_window_of_order_statistics_is_averaged(seed, n, share, data):
    count = max(1, round(share * n))
    present = some(seed, n, count)
    first = data.draw(st.integers(0, count - 1)) if data else 0
    last = data.draw(st.integers(first, count - 1)) if data else count - 1
    Case(seed, n, slots=3, size=65, present=present, dtype=torch.float64).check(
        lambda _: (torch.tensor(first), torch.tensor(last))
    )


@for_every_rule
@for_both_dtypes
@pytest.mark.parametrize("liars", [1, 3, 8])
def test_huge_uploads_are_ordered_like_any_other(rule, dtype, liars):
    case = Case(liars, 8, dtype=dtype)
    case.rows[:liars] *= 1e20
    case.check(rule)


def test_two_middle_values_near_the_float_limit_do_not_overflow():
    case = Case(0, 2, slots=2)
    case.rows[:, 0], case.rows[:, BASE] = 3e38, 0
    case.shares, case.model = torch.tensor([[1.0, 0.0]] * 2), torch.zeros(300)
    direction, _ = case.fused(Median().ranks)
    assert torch.equal(direction, case.rows[0, 0])


@pytest.mark.parametrize(
    "rule", [Median().ranks, Mean().ranks, TrimmedMean(0.2).ranks], ids=lambda r: str(r.__self__)
)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_nobody_present_raises_nothing(rule, n):
    case = Case(0, n, present=torch.zeros(n, dtype=torch.bool))
    direction, along = case.fused(rule)
    assert direction.shape == case.model.shape
    assert along.shape == case.shares.shape


@for_every_rule
def test_inputs_are_not_modified(rule):
    case = Case(3, 9, present=some(3, 9, 6))
    vectors = case.vectors()
    inputs = vectors, case.shares, case.model, case.present
    copies = [tensor.clone() for tensor in inputs]
    first, last = rule(case.present.sum())
    fused_order_mean(*inputs, int(first), int(last))
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


@pytest.fixture
def threads():
    """`torch.set_num_threads`, undone afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@for_both_dtypes
@pytest.mark.parametrize("count", [1, 2, 3])
def test_same_bits_come_out_of_every_call(threads, dtype, count):
    threads(count)
    case = Case(4, 50, size=2000, present=some(4, 50, 43), dtype=dtype)
    one = case.fused(Median().ranks)
    for _ in range(5):
        direction, along = case.fused(Median().ranks)
        assert torch.equal(direction, one[0])
        assert torch.equal(along, one[1])


@for_both_dtypes
@pytest.mark.parametrize("size", [100, 2000])  # fewer tiles than threads; more
def test_number_of_threads_changes_rounding_only(threads, dtype, size):
    case = Case(5, 50, size=size, present=some(5, 50, 44), dtype=dtype)
    found = {}
    for count in (1, 2, 3, 1, 2):
        threads(count)
        direction, along = found.setdefault(count, case.fused(Median().ranks))
        again, along_again = case.fused(Median().ranks)
        assert torch.equal(direction, again)
        assert torch.equal(along, along_again)
        assert torch.equal(direction, found[1][0])  # coordinates are independent
        # Sums over tiles are float64 whatever the vectors are.
        torch.testing.assert_close(along, found[1][1], rtol=1e-12, atol=1e-12)
        case.check(Median().ranks)


def test_numba_gets_as_many_threads_again_after_a_call_with_one(threads):
    import numba

    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one core")
    case = Case(6, 5)
    threads(1)
    case.fused(Median().ranks)
    threads(2)
    case.fused(Median().ranks)
    assert numba.get_num_threads() == 2


def large_memory():
    """Just enough for the fused pass to pay: (tiles, clients, slots, width)."""
    vectors = torch.zeros(fused._WORTH_IT // (8 * 8 * WIDTH), 8, 8, WIDTH)
    assert vectors.numel() == fused._WORTH_IT
    return vectors


def test_fused_pass_is_for_large_memories():
    assert has_fused(large_memory())
    assert not has_fused(large_memory()[1:])


@pytest.fixture
def no_numba(monkeypatch):
    monkeypatch.setattr(fused, "compiled", None)
    fused._say_once.cache_clear()
    yield
    fused._say_once.cache_clear()


@pytest.mark.usefixtures("no_numba")
def test_missing_numba_is_told_once_and_only_where_it_matters(caplog):
    with caplog.at_level(logging.WARNING, logger="secureafl"):
        assert not has_fused(large_memory()[1:])
        assert not caplog.records
        assert not has_fused(large_memory())
        assert not has_fused(large_memory())
    assert len(caplog.records) == 1
    assert caplog.records[0].name == "secureafl"
    assert "Numba" in caplog.text


def few_steps(count=12):
    """Directions of a server large enough for the fused pass."""
    clients, size, defense = 8, fused._WORTH_IT // 64 + 3, SecureAfl()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(size, generator=generator)
    state, directions = defense.init(clients, weights), []
    assert state.memory.vectors.numel() >= fused._WORTH_IT
    for t in range(count):
        noise = 0.01 * torch.randn(size, generator=generator)
        arrival = Arrival(torch.tensor(t % 3), torch.tensor(0), weights + noise, weights)
        decision, state = defense.step(state, arrival, ServerView(torch.tensor(t), weights, 0.1))
        weights = weights - 0.1 * decision.direction
        directions.append(decision.direction)
    return torch.stack(directions)


def test_step_without_numba_is_the_same_up_to_rounding(request):
    with_numba = few_steps()
    request.getfixturevalue("no_numba")
    without = few_steps()
    assert without.any(dim=1).all()
    torch.testing.assert_close(with_numba, without, rtol=1e-4, atol=1e-4)
