import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from reference.dense_bfgs import dense_bfgs

from secureafl.kernels.bfgs import Products, bfgs_product

DIM = 9


def random_pairs(rng, count, dim=DIM):
    """Steps and changes of a well-conditioned quadratic, with some noise."""
    half = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    hessian = np.eye(dim) + half @ half.T
    steps = rng.normal(size=(count, dim)) * rng.uniform(0.1, 10, size=(count, 1))
    noise = 0.05 * np.linalg.norm(steps, axis=1, keepdims=True) / np.sqrt(dim)
    return steps, steps @ hessian + noise * rng.normal(size=(count, dim))


def inner(one, other):
    return one.double() @ other.double().mT


def product(pairs_of_clients, size, vectors, dtype=torch.float64):
    """B v and its length, from lists of (steps, changes), each right-aligned in `size` places."""
    n, dim = vectors.shape
    steps, changes = np.zeros((n, size, dim)), np.zeros((n, size, dim))
    count = np.zeros(n, dtype=np.int64)
    for k, (s, y) in enumerate(pairs_of_clients):
        count[k] = len(s)
        if len(s):
            steps[k, -len(s) :], changes[k, -len(s) :] = s, y
    steps, changes, vectors = (torch.from_numpy(x).to(dtype) for x in (steps, changes, vectors))
    v = vectors[:, None]
    products = Products(
        steps=inner(steps, steps),
        cross=inner(steps, changes),
        changes=inner(changes, changes),
        along_steps=inner(steps, v)[:, :, 0],
        along_changes=inner(changes, v)[:, :, 0],
        squared=inner(v, v)[:, 0, 0],
    )
    made = bfgs_product(products, torch.from_numpy(count))
    assert all(part.dtype == torch.float64 for part in made)
    of_pairs = torch.cat([made.of_steps, made.of_changes], dim=1)[:, None].to(dtype)
    out = made.of_vector[:, None].to(dtype) * vectors
    out = out + (of_pairs @ torch.cat([steps, changes], dim=1))[:, 0]
    return out.double().numpy(), made.length.numpy()


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-4)])
def test_compact_product_equals_dense_recursion_for_every_fill(size, dtype, tolerance):
    rng = np.random.default_rng(size)
    for _ in range(20):
        clients = [random_pairs(rng, filled) for filled in range(size + 1)]
        vectors = rng.normal(size=(size + 1, DIM))
        found, length = product(clients, size, vectors, dtype)
        assert not found[0].any()  # no pair, no correction
        assert length[0] == 0
        for k in range(1, size + 1):
            expected = dense_bfgs(*clients[k]) @ vectors[k]
            error = np.linalg.norm(found[k] - expected) / np.linalg.norm(expected)
            assert error < tolerance
            assert length[k] == pytest.approx(np.linalg.norm(expected), rel=tolerance)


def test_newest_step_is_mapped_to_newest_change():
    rng = np.random.default_rng(0)
    steps, changes = random_pairs(rng, 4)
    found, length = product([(steps, changes)], 4, steps[-1:])
    np.testing.assert_allclose(found[0], changes[-1], rtol=1e-10)
    np.testing.assert_allclose(length[0], np.linalg.norm(changes[-1]), rtol=1e-10)


def test_more_pairs_than_dimensions_agree_with_dense_recursion():
    # Parallel steps make S'S singular; the recursion itself is still well defined.
    steps = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    changes = steps @ np.diag([1.0, 3.0])
    vector = np.array([[0.3, -0.7]])
    found, length = product([(steps, changes)], 3, vector)
    expected = dense_bfgs(steps, changes) @ vector[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)
    np.testing.assert_allclose(length[0], np.linalg.norm(expected), rtol=1e-9)


def test_each_client_has_its_own_matrix():
    rng = np.random.default_rng(3)
    clients = [random_pairs(rng, count) for count in (3, 0, 1, 2)]
    vectors = rng.normal(size=(4, DIM))
    together, lengths = product(clients, 3, vectors)
    for k, (client, vector) in enumerate(zip(clients, vectors, strict=True)):
        alone, length = product([client], 3, vector[None])
        np.testing.assert_allclose(together[k], alone[0], rtol=1e-12)
        np.testing.assert_allclose(lengths[k], length[0], rtol=1e-12)


def test_step_without_curvature_gives_no_correction():
    steps = np.array([[1.0, 0.0, 0.0]])
    changes = np.array([[0.0, 5.0, 0.0]])  # s'y = 0: mu = 0, nothing can be solved
    found, length = product([(steps, changes)], 2, np.array([[1.0, 2.0, 3.0]]))
    assert not found.any()
    assert length[0] == 0


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 4),
    step_exponents=st.lists(st.integers(-37, 20), min_size=4, max_size=4),
    change_exponents=st.lists(st.integers(-37, 20), min_size=4, max_size=4),
    vector_exponent=st.integers(-37, 20),
)
@example(0, 3, [0, 0, -28, 0], [0, 0, 0, 0], -16)  # a curvature beyond float32
@example(0, 1, [-21, 0, 0, 0], [9, 0, 0, 0], -11)
def test_product_is_finite_for_any_finite_float32_pairs(
    seed, size, step_exponents, change_exponents, vector_exponent
):
    rng = np.random.default_rng(seed)

    def unit(count):
        rows = rng.normal(size=(count, 5))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    steps = unit(size) * 10.0 ** np.array(step_exponents[:size])[:, None]
    changes = unit(size) * 10.0 ** np.array(change_exponents[:size])[:, None]
    vector = unit(1) * 10.0**vector_exponent
    found, length = product([(steps, changes)], size, vector, torch.float32)
    assert np.isfinite(found).all()
    assert np.isfinite(length).all()
