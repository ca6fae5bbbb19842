"""What every estimator owes the defence that calls it."""

from typing import get_args

import numpy as np
import pytest
import torch
from estimating import estimated, fed, shares
from hypothesis import example, given
from hypothesis import strategies as st
from stepping import always_compiled, always_plain

from secureafl.core.protocols import Estimator
from secureafl.core.trees import name_tensors
from secureafl.core.types import Arrival, Part
from secureafl.estimators import ESTIMATORS
from secureafl.kernels.memory import no_memory
from secureafl.kernels.operations import tiled_secant_products

for_every_estimator = pytest.mark.parametrize("kind", ESTIMATORS)
for_both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
KERNELS = {"plain": always_plain, "compiled": always_compiled}
for_both_kernels = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS.keys())
CLIENTS, DIM = 4, 5


def smooth_uploads(count, dtype=torch.float32):
    rng = np.random.default_rng(0)
    rows = []
    for k in range(count):
        base = rng.normal(size=DIM)
        both = (torch.from_numpy(x).to(dtype) for x in (1.5 * base + k % CLIENTS, base))
        rows.append((k % CLIENTS, *both, True))
    return rows


@for_every_estimator
def test_entry_is_an_estimator(kind):
    assert isinstance(ESTIMATORS[kind](), Estimator)


@for_every_estimator
@for_both_dtypes
def test_shares_are_fresh_float64_rows_and_estimates_have_the_weights_dtype(kind, dtype):
    estimator, weights = ESTIMATORS[kind](), torch.ones(DIM, dtype=dtype)
    memory, stats = fed(estimator, CLIENTS, smooth_uploads(15, dtype), weights)
    rows = estimated(estimator, memory, stats, weights)
    assert rows.dtype == dtype
    assert rows.shape == (CLIENTS, DIM)
    first = shares(estimator, memory, stats, weights)
    assert first.dtype == torch.float64
    assert first.shape == (CLIENTS, 2 + estimator.slots)
    copy = first.clone()
    first.fill_(7)  # what a caller does with them must not reach the memory
    assert torch.equal(shares(estimator, memory, stats, weights), copy)
    assert torch.equal(estimated(estimator, memory, stats, weights), rows)


@for_every_estimator
def test_estimating_changes_no_memory(kind):
    estimator, weights = ESTIMATORS[kind](), torch.ones(DIM)
    memory, stats = fed(estimator, CLIENTS, smooth_uploads(15), weights)
    named = {**name_tensors(memory, "memory"), **name_tensors(stats, "stats")}
    copies = {name: tensor.clone() for name, tensor in named.items()}
    shares(estimator, memory, stats, weights)
    assert all(torch.equal(named[name], copies[name]) for name in named)


def seventeenth(dtype):
    """An upload of client 0, whose curvature is clear."""
    _, gradient, base, _ = smooth_uploads(17, dtype)[-1]
    return Arrival(torch.tensor(0), torch.tensor(0), gradient, base)


@for_every_estimator
@for_both_dtypes
@pytest.mark.parametrize("known", [True, False])
def test_upload_that_is_not_kept_changes_no_notes_and_no_argument(kind, dtype, known):
    estimator, weights = ESTIMATORS[kind](), torch.ones(DIM, dtype=dtype)
    memory, stats = fed(estimator, CLIENTS, smooth_uploads(16 * known, dtype), weights)
    arrival, keep = seventeenth(dtype), torch.tensor(False)
    secant = tiled_secant_products(memory, arrival)
    shown = {"arrival": arrival, "secant": secant, "stats": stats, "memory": memory, "keep": keep}
    named = {k: v for name, state in shown.items() for k, v in name_tensors(state, name).items()}
    copies = {name: tensor.clone() for name, tensor in named.items()}
    _, after = estimator.observe(stats, secant, arrival, keep)
    assert all(torch.equal(named[name], copies[name]) for name in named)
    kept = name_tensors(after, "stats")
    assert all(torch.equal(kept[name], copies[name]) for name in kept)


@for_every_estimator
@for_both_dtypes
@pytest.mark.parametrize("keep", [True, False])
def test_entry_fills_places_of_the_estimators_own_with_parts_there_are(kind, dtype, keep):
    estimator, weights = ESTIMATORS[kind](), torch.ones(DIM, dtype=dtype)
    memory, stats = fed(estimator, CLIENTS, smooth_uploads(16, dtype), weights)
    arrival = seventeenth(dtype)
    entry, _ = estimator.observe(
        stats, tiled_secant_products(memory, arrival), arrival, torch.tensor(keep)
    )
    assert entry.places.dtype == torch.int64
    assert entry.places.shape == (len(entry.parts),)
    places = entry.places.tolist()
    assert len(set(places)) == len(places)
    assert all(0 <= place < estimator.slots for place in places)
    assert set(entry.parts) <= set(get_args(Part))
    assert entry.keep.dtype == torch.bool
    assert entry.keep.shape == ()


@for_every_estimator
def test_remembering_looks_at_no_number_and_keeps_its_shapes(kind):
    # On "meta" tensors have no values, so reading one raises.
    estimator, weights = ESTIMATORS[kind](), torch.zeros(DIM, device="meta")
    memory = no_memory(CLIENTS, 2 + estimator.slots, weights)
    stats = estimator.init(CLIENTS, weights)
    shapes = [(t.shape, t.dtype) for t in name_tensors(stats, "stats").values()]
    number = torch.zeros((), dtype=torch.int64, device="meta")
    arrival = Arrival(number, number, weights, weights)
    entry, after = estimator.observe(
        stats, tiled_secant_products(memory, arrival), arrival, number > 0
    )
    assert entry.places.device.type == "meta"
    assert [(t.shape, t.dtype) for t in name_tensors(after, "stats").values()] == shapes
    assert shares(estimator, memory, after, weights).shape == (CLIENTS, 2 + estimator.slots)


@for_every_estimator
@for_both_kernels
def test_client_heard_once_is_estimated_by_what_it_sent(kind, kernels):
    estimator, gradient = ESTIMATORS[kind](), torch.arange(float(DIM))
    weights = torch.full((DIM,), 9.0)
    with kernels():
        memory, stats = fed(estimator, CLIENTS, [(2, gradient, torch.ones(DIM), True)], weights)
    assert torch.equal(estimated(estimator, memory, stats, weights)[2], gradient)


@for_every_estimator
def test_remembering_reaches_the_own_client_only(kind):
    estimator = ESTIMATORS[kind]()
    uploads, weights = smooth_uploads(16), torch.ones(DIM)
    before = estimated(estimator, *fed(estimator, CLIENTS, uploads, weights), weights)
    secant = (1, torch.full((DIM,), 3.0), torch.full((DIM,), -2.0), True)
    after = estimated(estimator, *fed(estimator, CLIENTS, [*uploads, secant], weights), weights)
    others = torch.arange(CLIENTS) != 1
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[1], after[1])


sizes = st.sampled_from([-38, -30, -20, -10, -3, 0, 3, 8, 11, 16, 18])


@for_every_estimator
@for_both_kernels
@given(
    uploads=st.lists(st.tuples(st.integers(0, 1), sizes, sizes, st.integers(0, 3)), max_size=12),
    size=sizes,
)
# Two bases 1e-30 apart and gradients 1e12 apart: a curvature beyond float32.
@example([(0, -38, -38, 0), (0, 11, -30, 1)], -38)
def test_estimates_are_finite_whatever_finite_uploads_were_kept(kind, kernels, uploads, size):
    def vector(exponent, seed):
        drawn = np.random.default_rng(seed).normal(size=DIM)
        drawn *= 10.0**exponent / np.linalg.norm(drawn)
        return torch.from_numpy(drawn.astype(np.float32))

    estimator = ESTIMATORS[kind]()
    kept = [(c, vector(g, seed), vector(b, seed + 1), True) for c, g, b, seed in uploads]
    weights = vector(size, 9)
    with kernels():
        memory, stats = fed(estimator, CLIENTS, kept, weights)
        rows = estimated(estimator, memory, stats, weights)
    assert torch.isfinite(memory.gram).all()
    assert torch.isfinite(rows).all()
