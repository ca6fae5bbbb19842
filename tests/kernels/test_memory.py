import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import Case, always_compiled, always_plain, products_of, same_bits, usual_entry

from secureafl.core.server import Server, Upload
from secureafl.core.types import Arrival
from secureafl.defenses import SecureAfl
from secureafl.kernels import reference
from secureafl.kernels.memory import no_memory
from secureafl.kernels.operations import (
    after_step,
    select_participants,
    store_upload,
    tiled_secant_products,
)
from secureafl.kernels.step import step_along
from secureafl.kernels.tiles import GRADIENT, WIDTH, read_client

YES, NO = torch.tensor(True), torch.tensor(False)
SIZES = [1, 15, 16, 17, 33, 300, 1000, 16 * 32 * WIDTH + 85]
KERNELS = {"plain": always_plain, "compiled": always_compiled}
for_both_kernels = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS.keys())
for_every_way_to_keep = pytest.mark.parametrize(
    ("keep", "entry_keep"), [(True, True), (True, False), (False, True), (False, False)]
)


@pytest.fixture(scope="module")
def cpu():
    pytest.importorskip("llvmlite")
    with always_compiled() as module:
        yield module


def vectors_of(memory, size):
    """All vectors [n, slots, d]."""
    rows = [read_client(memory.vectors, torch.tensor(k), size) for k in range(len(memory.known))]
    return torch.stack(rows)


def errors(memory, weights):
    """Largest errors of `gram`, `along` and `squared`, as shares of the product of the norms."""
    rows, model = vectors_of(memory, weights.numel()), weights.double().numpy()
    gram, along = products_of(rows, weights)
    lengths = np.maximum(np.linalg.norm(rows.double().numpy(), axis=2), 1e-30)
    gram = np.abs(memory.gram.numpy() - gram) / (lengths[:, :, None] * lengths[:, None, :])
    along = np.abs(memory.along.numpy() - along) / (lengths * np.linalg.norm(model))
    squared = abs(float(memory.squared) / (model @ model) - 1)
    return float(gram.max()), float(along.max()), squared


def draws(seed, dtype):
    """A function that draws vectors, and its generator."""
    rng = np.random.default_rng(seed)
    return lambda *shape: torch.from_numpy(rng.normal(size=shape)).to(dtype), rng


@for_both_kernels
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), known=st.booleans())
def test_upload_is_compared_with_the_last_one_of_its_client(kernels, seed, size, known):
    draw, rng = draws(seed, torch.float32)
    weights, client = draw(size), torch.tensor(rng.integers(3))
    memory = no_memory(3, 8, weights)
    last = Arrival(client, torch.tensor(0), draw(size), draw(size))
    new = Arrival(client, torch.tensor(0), draw(size), draw(size))
    with kernels():
        if known:
            memory = store_upload(memory, last, usual_entry(8, False), weights, YES)
        before = memory.vectors.clone()
        secant = tiled_secant_products(memory, new)
    assert torch.equal(memory.vectors, before)
    assert bool(secant.known) == known
    step, change = new.base - known * last.base, new.gradient - known * last.gradient
    pairs = [(step, step), (step, change), (change, change), (new.gradient, new.gradient)]
    for found, (one, other) in zip(secant[1:], pairs, strict=True):
        assert found.dtype == torch.float64
        one, other = one.double(), other.double()
        assert abs(found - one @ other) <= 1e-6 * (one.abs() @ other.abs())


@pytest.mark.parametrize("slots", [2, 3, 8, 17])
@pytest.mark.parametrize("n", [1, 5])
def test_compiled_differences_of_whole_numbers_are_exact(cpu, slots, n):
    for size in SIZES:
        case = Case(size, n, slots, size, whole=True)
        assert torch.equal(case.differences(cpu), case.differences(reference))


@for_every_way_to_keep
@pytest.mark.parametrize("slots", [2, 3, 5, 8, 11, 16])
def test_compiled_store_equals_the_plain_one(cpu, slots, keep, entry_keep):
    for size, whole in ((1, False), (17, True), (300, False), (SIZES[-1], True)):
        case = Case(slots, 3, slots, size, whole=whole)
        case.keep, case.entry = torch.tensor(keep), usual_entry(slots, entry_keep)
        case.check_exchange(cpu)
        if whole:
            pairs = zip(case.store_upload(cpu), case.store_upload(reference), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def test_compiled_store_of_whole_numbers_of_any_size_is_exact(cpu):
    for size in SIZES:
        case = Case(size, 3, size=size, whole=True)
        pairs = zip(case.store_upload(cpu), case.store_upload(reference), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("n", [1, 2, 51, 1000])
def test_compiled_store_reaches_one_client_of_any_number(cpu, n):
    for client in {0, n // 2, n - 1}:
        case = Case(n, n, slots=3, size=33)
        case.arrival = case.arrival._replace(client=torch.tensor(client))
        case.check_exchange(cpu)


@for_every_way_to_keep
@pytest.mark.parametrize("version", ["plain", "compiled"])
def test_memory_after_an_upload_is_what_numpy_says(request, version, keep, entry_keep):
    module = request.getfixturevalue("cpu") if version == "compiled" else reference
    case = Case(1, 4, size=70)
    case.keep, case.entry = torch.tensor(keep), usual_entry(8, entry_keep)
    memory, rows = case.store_upload(module), case.renewed()
    assert torch.equal(vectors_of(memory, 70), rows)
    gram, along = products_of(rows, case.weights)
    np.testing.assert_allclose(memory.gram, gram, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(memory.along, along, rtol=1e-5, atol=1e-5)
    assert torch.equal(memory.gram, memory.gram.mT)
    assert float(memory.squared) == pytest.approx(float(case.weights.square().sum()), rel=1e-5)
    expected = case.memory().known
    expected[case.arrival.client] |= keep
    assert torch.equal(memory.known, expected)


def test_store_modifies_nothing_but_the_memory(cpu):
    case = Case(2, 4)
    shown = [*case.arrival, case.entry.places, case.entry.keep, case.weights, case.keep]
    copies = [tensor.clone() for tensor in shown]
    case.store_upload(cpu)
    case.differences(cpu)
    assert all(torch.equal(a, b) for a, b in zip(shown, copies, strict=True))


@for_both_kernels
def test_upload_that_is_not_kept_leaves_no_trace(kernels):
    draw, _ = draws(0, torch.float32)
    weights = draw(200)
    with kernels():
        memory = no_memory(2, 8, weights)
        for client, keep in ((1, YES), (0, NO), (1, NO)):
            before = [tensor.clone() for tensor in memory]
            arrival = Arrival(torch.tensor(client), torch.tensor(0), draw(200), draw(200))
            memory = store_upload(memory, arrival, usual_entry(8), weights, keep)
            if not keep:
                after = memory._replace(squared=before[-1])  # of the model: computed anew
                assert all(same_bits(a, b) for a, b in zip(before, after, strict=True))
    assert memory.known.tolist() == [False, True]
    assert memory.vectors[:, 1, GRADIENT].any()


def test_new_memory_knows_nobody_but_the_model():
    weights = torch.arange(5.0)
    memory = no_memory(3, 4, weights)
    assert not memory.known.any()
    assert not memory.vectors.any()
    assert not memory.gram.any()
    assert not memory.along.any()
    assert float(memory.squared) == 30


def test_model_that_did_not_move_leaves_the_inner_products_as_they_were():
    case = Case(3, 2)
    memory, before = case.memory(), case.memory()
    step, _ = case.step(reference)
    unusable = step._replace(
        along=torch.full_like(step.along, torch.nan),
        with_model=torch.full_like(step.with_model, torch.inf),
    )
    nobody = torch.tensor(0)
    stepped, after = after_step(memory, unusable, 0.1, nobody)
    assert not stepped
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("rate", [0.0, 0.05, 3.0])
def test_inner_products_follow_the_model(rate):
    case = Case(4, 3, dtype=torch.float64)
    memory = case.store_upload(reference)
    direction = torch.from_numpy(np.random.default_rng(4).normal(size=300))
    step = step_along(memory.vectors, direction, case.weights, direction)
    stepped, memory = after_step(memory, step, rate, torch.tensor(1))
    assert stepped
    assert max(errors(memory, case.weights - rate * direction)) <= 1e-12


@for_both_kernels
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 40, 129, 300]))
@settings(max_examples=settings().max_examples // 2)
def test_inner_products_are_right_after_any_steps_and_uploads(kernels, seed, size):
    draw, rng = draws(seed, torch.float32)
    weights = draw(size) + 1
    memory = no_memory(4, 6, weights)
    with kernels():
        for number in range(50):
            client, keep = torch.tensor(rng.integers(4)), torch.tensor(bool(rng.random() < 0.7))
            arrival = Arrival(client, torch.tensor(0), draw(size), draw(size))
            place = torch.tensor([number % 2, number % 2 + 2])
            entry = usual_entry(6, bool(rng.random() < 0.7))._replace(places=place)
            memory = store_upload(memory, arrival, entry, weights, keep)
            direction, count = draw(size), torch.tensor(int(rng.integers(5)))
            step = step_along(memory.vectors, direction, weights, direction)
            stepped, memory = after_step(memory, step, 0.02, count)
            weights = torch.where(stepped, weights - 0.02 * direction, weights)
    rows, model = vectors_of(memory, size), weights.double()
    gram, expected = products_of(rows, weights)
    # On the way the model may have been longer than it is now.
    longest = torch.linalg.vector_norm(model) + size**0.5
    lengths = torch.linalg.vector_norm(rows.double(), dim=2)
    scale = (lengths[:, :, None] * lengths[:, None, :]).numpy()
    assert (np.abs(memory.gram.numpy() - gram) <= 1e-6 * scale).all()
    assert (np.abs(memory.along.numpy() - expected) <= 1e-6 * (lengths * longest).numpy()).all()
    assert abs(memory.squared - model @ model) <= 1e-6 * longest**2
    assert not memory.along[:, GRADIENT].any()


def arrivals(server, state, count, seed):
    """Feed `count` noisy gradients of quadratics, most of them a few rounds old."""
    rng = np.random.default_rng(seed)
    size = state.weights.numel()
    generator = torch.Generator().manual_seed(seed)
    hessian = 0.5 + torch.rand(size, generator=generator)
    centre = torch.randn(server.num_clients, size, generator=generator)
    # The last client is included of rarely: its products with the model are carried for long.
    often = np.r_[np.ones(server.num_clients - 1), 0.002]
    clients = rng.choice(server.num_clients, size=count, p=often / often.sum())
    clients[: server.num_clients] = np.arange(server.num_clients)
    lags = rng.integers(0, 5, size=count)
    models = [state.weights]
    for client, lag in zip(clients.tolist(), lags.tolist(), strict=True):
        lag = min(lag, state.round, len(models) - 1)
        version, base = state.round - lag, models[-1 - lag]
        noise = 0.3 * torch.randn(size, generator=generator)
        state.ledger.lend(version, base)
        gradient = hessian * (base - centre[client]) + noise
        _, state = server.receive(state, Upload(client, version, gradient))
        models = [*models[-5:], state.weights]
    return state


@for_both_kernels
@pytest.mark.parametrize("count", [1_500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_inner_products_are_still_right_after_thousands_of_arrivals(kernels, count):
    server = Server(SecureAfl(window=100), 8, 0.05)
    weights = torch.randn(40, generator=torch.Generator().manual_seed(1))
    with kernels():
        state = arrivals(server, server.start(weights), count, seed=1)
    memory = state.defense.memory
    assert state.round == count
    assert memory.known.all()
    assert (state.defense.notes.appended[:-1] > 20).all()  # curvature was there to estimate with
    assert float(torch.linalg.vector_norm(state.weights - weights)) > 1
    gram, along, squared = errors(memory, state.weights)
    # Never older than the last upload; of float32 products where compiled.
    assert gram <= (1e-12 if kernels is always_plain else 1e-6)
    # The model is rounded to float32 at each step and its products with a vector are not: this is
    # what has added up since the client was last included of, far below the 1e-3 that would matter.
    assert along <= 1e-6
    assert squared <= 1e-6


@for_both_kernels
@pytest.mark.parametrize("squared", [1e37, torch.inf, torch.nan])
def test_direction_too_long_to_take_does_not_move_the_model(kernels, squared):
    case = Case(3, 2)
    memory, before = case.memory(), case.memory()
    step, _ = case.step(reference)
    with kernels():
        long = step._replace(squared=torch.full_like(step.squared, squared))
        stepped, after = after_step(memory, long, 0.1, torch.tensor(3))
    assert not stepped
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@for_both_kernels
@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_client_takes_part_with_its_upload_alone(kernels, included, before):
    known = torch.tensor([True, before, False, True])
    shares = torch.arange(1.0, 17, dtype=torch.float64).view(4, 4)
    others = shares[[0, 2, 3]].clone()
    with kernels():
        present, count = select_participants(known, shares, torch.tensor(1), torch.tensor(included))
    assert present.tolist() == [True, included, False, True]
    assert int(count) == 2 + included
    assert shares[1].tolist() == [1, 0, 0, 0]
    assert torch.equal(shares[[0, 2, 3]], others)
    assert known.tolist() == [True, before, False, True]
