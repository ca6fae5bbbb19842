"""What every aggregator owes the defence that calls it, for every entry of the table.

A rule that breaks a property does so by design; the sets below say which and why.
"""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from aggregating import everybody, with_outliers
from hypothesis import given, settings
from hypothesis import strategies as st

from secureafl.aggregators import AGGREGATORS, Bucketing, FoundationFl, NearestNeighbourMixing
from secureafl.core.protocols import Aggregator
from secureafl.core.rules import apply_rule
from secureafl.core.traits import has_trait
from secureafl.core.trees import name_tensors, rebuild

RULES = {
    **{kind: cls() for kind, cls in AGGREGATORS.items()},
    **{f"bucketing_{kind}": Bucketing(cls()) for kind, cls in AGGREGATORS.items()},
    **{f"mixing_{kind}": NearestNeighbourMixing(cls()) for kind, cls in AGGREGATORS.items()},
    "foundation_fl_foolsgold": FoundationFl(AGGREGATORS["foolsgold"]()),
}
# Inside the wrappers these stand for the others: a rule with trusted samples, one with a memory.
USUAL = {*AGGREGATORS, "foundation_fl_foolsgold", "bucketing_fltrust", "mixing_foolsgold"}


def for_each(names):
    marked = [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in names]
    return pytest.mark.parametrize("name", marked)


for_every_rule = for_each(RULES)
for_both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def entries_except(*kinds):
    assert set(kinds) <= set(AGGREGATORS)
    return pytest.mark.parametrize("name", [kind for kind in AGGREGATORS if kind not in kinds])


DIM = 5


def run(rule, state, values, present):
    """One call; the trusted gradient is that of honest clients."""
    trusted = torch.arange(1, values.shape[1] + 1, device=values.device).to(values.dtype)
    return apply_rule(rule, state, values, present, trusted)


def aggregated(name, values, present, calls=1):
    rule = RULES[name]
    state = rule.init(len(values), values[0])
    for _ in range(calls):
        vector, state = run(rule, state, values, present)
    return vector


def random_rows(seed, n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    values = 0.5 + torch.randn(n, DIM, generator=generator, dtype=dtype)
    present = torch.rand(n, generator=generator) < 0.7
    present[0] = True
    return values, present


@for_every_rule
def test_entry_is_an_aggregator(name):
    assert isinstance(RULES[name], Aggregator)


def test_page_of_the_docs_has_a_row_for_every_entry():
    page = (Path(__file__).parents[2] / "docs" / "aggregators.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(AGGREGATORS)


# fltrust gives updates the length of the trusted gradient, flame adds noise.
@entries_except("fltrust", "flame")
@for_both_dtypes
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30))
@settings(max_examples=settings().max_examples // 2)
def test_aggregate_lies_among_the_rows_present_and_keeps_the_dtype(name, dtype, seed, n):
    values, present = random_rows(seed, n, dtype)
    found = aggregated(name, values, present)
    assert found.dtype == dtype
    assert found.shape == (DIM,)
    counted = values[present]
    if name in ("centred_clipping", "sign_guard"):  # they clip_to_median_norm updates
        counted = torch.cat([counted, torch.zeros(1, DIM, dtype=dtype)])
    low, high = counted.amin(dim=0), counted.amax(dim=0)
    slack = 1e-5 * (1 + high - low)
    assert ((low - slack <= found) & (found <= high + slack)).all()


@for_every_rule
@pytest.mark.parametrize("filler", [0.0, 1e12, -1e30])
def test_absent_rows_do_not_matter(name, filler):
    values, present = random_rows(1, 9)
    other = torch.where(present[:, None], values, filler)
    for calls in (1, 3):
        one, same = (aggregated(name, v, present, calls) for v in (values, other))
        assert torch.equal(one, same)


# bucketing draws groups by place; rflbat's k-means starts from clients drawn by place.
@entries_except("bucketing", "rflbat")
def test_order_of_clients_does_not_matter(name):
    # So many that Krum and Bulyan never come down to one neighbour, where scores tie.
    values, present = random_rows(2, 25, torch.float64)
    order = torch.randperm(25, generator=torch.Generator().manual_seed(0))
    one, other = aggregated(name, values, present), aggregated(name, values[order], present[order])
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


# fltrust gives updates the length of the trusted gradient.
@entries_except("fltrust")
@pytest.mark.parametrize("n", [1, 2, 5, 50])
def test_clients_that_agree_get_their_way(name, n):
    values = torch.arange(DIM, dtype=torch.float64).expand(n, DIM).contiguous()
    found = aggregated(name, values, torch.ones(n, dtype=torch.bool))
    noise = 0.03 if name == "flame" else 1e-9
    torch.testing.assert_close(found, values[0], rtol=noise, atol=noise)


@for_every_rule
@for_both_dtypes
@pytest.mark.parametrize("n", [1, 2, 7])
def test_lone_client_gets_its_way(name, dtype, n):
    values, _ = random_rows(5, n, dtype)
    present = torch.arange(n) == n - 1
    found, own = aggregated(name, values, present), values[-1]
    if "fltrust" in name:
        trusted = torch.arange(1, DIM + 1).to(dtype)
        length = torch.linalg.vector_norm(trusted) * (own @ trusted > 0)
        own = own / torch.linalg.vector_norm(own) * length
    noise = 0.02 if "flame" in name else 1e-5
    torch.testing.assert_close(found, own, rtol=noise, atol=noise)


@for_every_rule
def test_input_is_not_modified(name):
    for values, present in (random_rows(3, 8), (torch.ones(4, DIM), torch.ones(4, dtype=bool))):
        copies = values.clone(), present.clone()
        aggregated(name, values, present, calls=2)
        assert torch.equal(values, copies[0])
        assert torch.equal(present, copies[1])


@for_every_rule
def test_result_is_the_callers_to_change(name):
    rule, (values, present) = RULES[name], random_rows(13, 8)
    one, other = (rule.init(8, values[0]) for _ in range(2))
    for _ in range(3):
        expected, one = run(rule, one, values, present)
        found, other = run(rule, other, values, present)
        assert torch.equal(found, expected)
        found.fill_(7)
    assert torch.equal(values, random_rows(13, 8)[0])


@for_every_rule
def test_nobody_present_gives_zero_and_later_calls_are_well(name):
    rule, (values, present) = RULES[name], random_rows(4, 6)
    state = rule.init(6, values[0])
    found, state = run(rule, state, values, torch.zeros(6, dtype=torch.bool))
    assert torch.equal(found, torch.zeros(DIM))
    assert torch.isfinite(run(rule, state, values, present)[0]).all()


@for_every_rule
@for_both_dtypes
def test_state_keeps_shapes_types_and_device(name, dtype):
    rule, (values, _) = RULES[name], random_rows(6, 7, dtype)
    state = rule.init(7, values[0])
    kinds = {k: (t.shape, t.dtype, t.device) for k, t in name_tensors(state, "s").items()}
    for count in (7, 1, 2, 0, 5):
        vector, state = run(rule, state, values, torch.arange(7) < count)
        assert vector.dtype == dtype
        found = {k: (t.shape, t.dtype, t.device) for k, t in name_tensors(state, "s").items()}
        assert found == kinds


for_every_recordable = for_each(n for n in RULES if not has_trait(RULES[n], "on_host"))


@for_every_recordable
def test_rule_never_looks_at_a_number_unless_it_says_so(name):
    # On "meta" tensors have no values, so reading one raises: what a recorded GPU step needs.
    rule, values = RULES[name], torch.zeros(6, DIM, device="meta")
    state = rule.init(6, values[0])
    shapes = [(t.shape, t.dtype) for t in name_tensors(state, "s").values()]
    vector, after = run(rule, state, values, torch.ones(6, dtype=torch.bool, device="meta"))
    assert vector.shape == (DIM,)
    assert vector.device.type == "meta"
    assert [(t.shape, t.dtype) for t in name_tensors(after, "s").values()] == shapes


def copied(state):
    return rebuild(state, "s", {k: t.clone() for k, t in name_tensors(state, "s").items()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@for_every_recordable
def test_call_recorded_on_a_gpu_gives_what_the_cpu_gives(name):
    rule, (values, present) = RULES[name], random_rows(1, 25)
    here, there = (rule.init(25, v[0]) for v in (values, values.cuda()))
    shown, counted = values.cuda(), present.cuda()
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        run(rule, copied(there), shown, counted)
    warm_up.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, after = run(rule, copied(there), shown, counted)
        pairs = zip(*(name_tensors(s, "s").values() for s in (there, after)), strict=True)
        for old, new in pairs:
            old.copy_(new)
    for seed in range(2, 6):
        values, present = random_rows(seed, 25)
        shown.copy_(values)
        counted.copy_(present)
        graph.replay()
        expected, here = run(rule, here, values, present)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_only_rflbat_looks_at_numbers():
    assert {kind for kind in AGGREGATORS if has_trait(RULES[kind], "on_host")} == {"rflbat"}


@for_every_rule
def test_state_survives_safetensors_and_goes_on_with_the_same_bits(name):
    rule, (values, present) = RULES[name], random_rows(7, 9)
    state = rule.init(9, values[0])
    for _ in range(3):
        _, state = run(rule, state, values, present)
    saved = safetensors.torch.save(name_tensors(state, "rule"))
    restored = rebuild(rule.init(9, values[0]), "rule", safetensors.torch.load(saved))
    for seed in (8, 9):
        values, present = random_rows(seed, 9)
        one, state = run(rule, state, values, present)
        other, restored = run(rule, restored, values, present)
        assert torch.equal(one, other)


@for_every_rule
def test_same_calls_give_the_same_bits_and_leave_global_generators_alone(name):
    values, present = random_rows(10, 12)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, other = (aggregated(name, values, present, calls=3) for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


# fltrust knows no lengths, and geometric_median's smoothing is a fixed one.
@entries_except("fltrust", "geometric_median")
@pytest.mark.parametrize("factor", [2.0**-40, 1024.0])
def test_larger_updates_give_a_result_as_much_larger(name, factor):
    values, present = random_rows(11, 15, torch.float64)
    one, other = aggregated(name, values, present), aggregated(name, factor * values, present)
    torch.testing.assert_close(other, factor * one, rtol=1e-6, atol=1e-6 * factor)


# These look at angles, signs or lengths, which depend on where zero is.
@entries_except(
    *("centred_clipping", "flame", "fltrust", "foolsgold", "freq_fed", "rflbat", "sign_guard")
)
def test_what_is_added_to_all_updates_is_added_to_the_result(name):
    values, present = random_rows(12, 15, torch.float64)
    shift = torch.linspace(-300, 300, DIM, dtype=torch.float64)
    one, other = aggregated(name, values, present), aggregated(name, values + shift, present)
    torch.testing.assert_close(other, one + shift, rtol=1e-9, atol=1e-7)


@entries_except("mean")
@for_both_dtypes
@pytest.mark.parametrize("distance", [1e3, 1e18])
@pytest.mark.parametrize("placed", ["last", "first", "mixed"])
def test_outliers_up_to_the_assumed_share_are_held_off(name, dtype, distance, placed):
    honest = torch.from_numpy(with_outliers(honest=16, outliers=0, size=DIM))
    direction = torch.arange(1, DIM + 1).double()
    honest = direction + 0.3 * (honest - honest.mean(dim=0))
    bad = -distance * direction + 1e-3 * honest[:4]
    values = torch.cat([honest, bad]).to(dtype)
    order = {"last": torch.arange(20), "first": torch.arange(20).flip(0)}
    mixed = torch.from_numpy(np.random.default_rng(0).permutation(20))
    values = values[order.get(placed, mixed)]
    found = aggregated(name, values, torch.from_numpy(everybody(20)), calls=10).double()
    spread = torch.linalg.vector_norm(honest - direction, dim=1).max()
    assert torch.linalg.vector_norm(found - direction) < 2 * spread


exponents = st.sampled_from([-45, -30, -12, -3, 0, 3, 9, 16, 20])


@for_every_rule
@given(
    sizes=st.lists(st.tuples(exponents, st.integers(0, 3), st.booleans()), min_size=1, max_size=9),
    calls=st.integers(1, 3),
)
@settings(max_examples=settings().max_examples // 2)
def test_result_is_finite_whatever_finite_updates_arrive(name, sizes, calls):
    rows = []
    for exponent, seed, _ in sizes:
        row = np.random.default_rng(seed).normal(size=DIM)
        rows.append(row * 0.99 * 10.0**exponent / np.linalg.norm(row))
    present = torch.tensor([counts for *_, counts in sizes])
    found = aggregated(name, torch.tensor(np.array(rows), dtype=torch.float32), present, calls)
    assert torch.isfinite(found).all()
    assert torch.linalg.vector_norm(found.double()) < 1.1e20
