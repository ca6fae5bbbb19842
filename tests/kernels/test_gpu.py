"""The GPU's version of the hot operations against the plain one."""

import pytest
import torch
from emulated_cuda import GPU, costly

from secureafl.core.types import Arrival, Entry, Inner, SecantProducts
from secureafl.kernels import reference
from secureafl.kernels.memory import no_memory
from secureafl.kernels.step import Selection, step_along
from secureafl.linalg.quantile import no_history

pytestmark = pytest.mark.usefixtures("gpu")

CASES = [(7, 3, 77), (100, 3, 333)]  # clients, pairs, parameters
CASES += [costly(*case) for case in [(50, 3, 1000), (51, 1, 300), (64, 2, 100), (300, 3, 500)]]
CASES += [costly(*case) for case in [(1, 2, 5), (2, 5, 1), (1000, 3, 200)]]


def on_gpu(value, dtype=None):
    return torch.tensor(value, device=GPU, dtype=dtype)


def filled(clients, pairs, size):
    """A memory of random vectors, and the model."""
    weights = torch.randn(size, device=GPU)
    memory = no_memory(clients, 2 + 2 * pairs, weights)
    for client in range(clients):
        gradient, base = torch.randn(2, size, device=GPU)
        arrival = Arrival(on_gpu(client), on_gpu(0), gradient, base)
        parts = Entry(torch.arange(2 * pairs, device=GPU), ("step", "change") * pairs, on_gpu(True))
        memory = reference.store_upload(memory, arrival, parts, weights, on_gpu(True))
    return memory, weights


def copy(memory):
    return memory._replace(**{name: getattr(memory, name).clone() for name in memory._fields})


def near(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(("clients", "pairs", "size"), CASES)
@pytest.mark.parametrize(("keep", "entry"), [(True, True), (True, False), (False, True)])
def test_step_is_the_plain_one(gpu, clients, pairs, size, keep, entry):
    torch.manual_seed(clients)
    memory, weights = filled(clients, pairs, size)
    for absent in (0, 1, clients // 2):
        present = torch.randperm(clients, device=GPU) >= min(absent, clients - 1)
        count, shares = present.sum(), torch.randn_like(memory.along)
        gradient, base = torch.randn(2, size, device=GPU)
        arrival = Arrival(on_gpu(clients // 2), on_gpu(0), gradient, base)
        places = Entry(on_gpu([pairs - 1, 2 * pairs - 1]), ("step", "change"), on_gpu(entry))
        secant, plain = (
            gpu.tiled_secant_products(memory, arrival),
            reference.tiled_secant_products(memory, arrival),
        )
        assert bool(secant.known) == bool(plain.known)
        near(secant[1:], plain[1:])
        for ranks in (
            ((count - 1) // 2, count // 2),
            (0 * count, count - 1),
            (count // 4, count // 2),
        ):
            given = (arrival, places, on_gpu(keep), weights, Selection(shares, present, *ranks))
            step, after = gpu.order_step(copy(memory), *given)
            plain, expected = reference.order_step(copy(memory), *given)
            near(step, plain)
            near(after, expected)
            assert torch.equal(after.vectors, expected.vectors)


@pytest.mark.parametrize(("clients", "pairs", "size"), CASES)
@pytest.mark.parametrize("cap", [0.5, float("inf")])
def test_shares_are_the_plain_ones(gpu, clients, pairs, size, cap):
    torch.manual_seed(clients)
    memory, _ = filled(clients, pairs, size)
    inner = Inner(memory.gram, memory.along, memory.squared)
    appended = torch.arange(clients, device=GPU) % (2 * pairs + 1)
    shares = [version.lbfgs_shares(inner, appended, pairs, cap) for version in (gpu, reference)]
    torch.testing.assert_close(*shares, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("window", [0, 1, 3, 7])
def test_filter_is_the_plain_one(gpu, window):
    torch.manual_seed(window)
    one, other = (no_history(window, torch.device(GPU)) for _ in range(2))
    for number in range(80):
        figures = torch.rand(4, dtype=torch.float64, device=GPU) * 4
        figures[0] = 0 if number % 17 == 0 else figures[0]
        secant = SecantProducts(on_gpu(number % 9 != 0), *figures.round(decimals=number % 3))
        found, one = gpu.filter_update(one, secant, 1.0, 0.8)
        expected, other = reference.filter_update(other, secant, 1.0, 0.8)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
    rounding = 0 if GPU == "cuda" else 1e-15  # of torch's roots on a CPU the last bit may be wrong
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=rounding, atol=0)


@pytest.mark.parametrize("clients", [1, 50, 300])
@pytest.mark.parametrize("included", [False, True])
def test_same_participants_are_selected(gpu, clients, included):
    torch.manual_seed(clients)
    known, shares = torch.rand(clients, device=GPU) < 0.7, torch.rand(clients, 8, device=GPU)
    found = []
    for version in (gpu, reference):
        own = shares.double()
        found.append(
            [*version.select_participants(known, own, on_gpu(clients // 2), on_gpu(included)), own]
        )
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(("count", "squared"), [(0, 1.0), (3, 1.0), (3, 1e37), (3, torch.nan)])
def test_model_moves_as_with_the_plain_one(gpu, count, squared):
    torch.manual_seed(3)
    memory, weights = filled(7, 3, 77)
    step = step_along(memory.vectors, torch.randn_like(weights), weights, weights)
    step = step._replace(squared=on_gpu(squared, torch.float64))
    found = [v.after_step(copy(memory), step, 0.1, on_gpu(count)) for v in (gpu, reference)]
    assert bool(found[0][0]) == bool(found[1][0]) == (count > 0 and squared == 1)
    near(found[0][1], found[1][1])
