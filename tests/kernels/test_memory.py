import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureafl.core.server import Server, Upload
from secureafl.defenses import SecureAfl
from secureafl.kernels import fused
from secureafl.kernels.memory import after_step, no_memory, recall, remember
from secureafl.kernels.tiles import products

YES, NO = torch.tensor(True), torch.tensor(False)


def exact(memory, weights):
    """All vectors [n, slots, d] and the model, as float64 arrays."""
    rows = [recall(memory, torch.tensor(k), weights.numel()) for k in range(len(memory.known))]
    return torch.stack(rows).double().numpy(), weights.double().numpy()


def errors(memory, weights):
    """Largest errors of `gram` and `along`, as shares of the product of the norms."""
    rows, model = exact(memory, weights)
    lengths = np.maximum(np.linalg.norm(rows, axis=2), 1e-30)
    gram = np.abs(memory.gram.numpy() - rows @ rows.transpose(0, 2, 1))
    along = np.abs(memory.along.numpy() - rows @ model)
    gram /= lengths[:, :, None] * lengths[:, None, :]
    along /= lengths * np.linalg.norm(model)
    return float(gram.max()), float(along.max())


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["f64", "f32"]
)
@pytest.mark.parametrize("one_pass", [False, True], ids=["plain", "fused"])
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 40, 129, 300]))
def test_inner_products_are_right_after_any_steps_and_uploads(
    one_pass, dtype, tolerance, seed, size
):
    if one_pass:
        pytest.importorskip("numba")
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)

    weights = draw(size) + 1
    memory = no_memory(4, 5, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_WORTH_IT", 0 if one_pass else 1 << 40)
        for _ in range(50):
            client, keep = torch.tensor(rng.integers(4)), torch.tensor(bool(rng.random() < 0.7))
            memory = remember(memory, client, draw(5, size), weights, keep)
            direction, stepped = draw(size), torch.tensor(bool(rng.random() < 0.8))
            memory = after_step(memory, -0.02 * products(memory.vectors, direction), stepped)
            weights = torch.where(stepped, weights - 0.02 * direction, weights)
    rows, model = exact(memory, weights)
    # On the way the model may have been longer than it is now.
    room = np.linalg.norm(rows, axis=2) * (np.linalg.norm(model) + np.sqrt(size))
    gram, _ = errors(memory, weights)
    assert gram <= tolerance
    assert (np.abs(memory.along.numpy() - rows @ model) <= tolerance * room).all()


def test_upload_that_is_not_kept_leaves_no_trace():
    weights = torch.ones(200)
    memory = remember(no_memory(2, 3, weights), torch.tensor(1), torch.rand(3, 200), weights, YES)
    before = [tensor.clone() for tensor in memory]
    after = remember(memory, torch.tensor(0), torch.rand(3, 200), weights, NO)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert after.known.tolist() == [False, True]


def test_model_that_did_not_move_leaves_the_inner_products_as_they_were():
    weights = torch.ones(200)
    memory = remember(no_memory(2, 3, weights), torch.tensor(1), torch.rand(3, 200), weights, YES)
    unusable = torch.full_like(memory.along, torch.nan)
    assert torch.equal(after_step(memory, unusable, NO).along, memory.along)


def arrivals(server, state, count, seed):
    """Feed `count` noisy gradients of quadratics, most of them a few rounds old."""
    rng = np.random.default_rng(seed)
    size = state.weights.numel()
    generator = torch.Generator().manual_seed(seed)
    hessian = 0.5 + torch.rand(size, generator=generator)
    centre = torch.randn(server.num_clients, size, generator=generator)
    # The last client is heard of rarely: its products with the model are carried for long.
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


@pytest.mark.parametrize("count", [1_500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_inner_products_are_still_right_after_thousands_of_arrivals(count):
    server = Server(SecureAfl(window=100), 8, 0.05)
    weights = torch.randn(40, generator=torch.Generator().manual_seed(1))
    state = arrivals(server, server.start(weights), count, seed=1)
    memory = state.defense.memory
    assert state.round == count
    assert memory.known.all()
    assert (state.defense.notes.count[:-1] == 3).all()  # curvature was there to estimate with
    assert float(torch.linalg.vector_norm(state.weights - weights)) > 1
    gram, along = errors(memory, state.weights)
    assert gram <= 1e-12  # never older than the last upload
    # The model is rounded to float32 at each step and its products with a vector are not: this is
    # what has added up since the client was last heard of, far below the 1e-3 that would matter.
    assert along <= 1e-6
