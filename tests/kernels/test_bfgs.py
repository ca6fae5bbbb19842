import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from reference.dense_bfgs import dense_bfgs

from secureafl.kernels.bfgs import bfgs_product

DIM = 9


def random_pairs(rng, count, dim=DIM):
    """Steps and changes of a well-conditioned quadratic, with some noise."""
    half = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    hessian = np.eye(dim) + half @ half.T
    steps = rng.normal(size=(count, dim)) * rng.uniform(0.1, 10, size=(count, 1))
    noise = 0.05 * np.linalg.norm(steps, axis=1, keepdims=True) / np.sqrt(dim)
    return steps, steps @ hessian + noise * rng.normal(size=(count, dim))


def product(pairs_of_clients, size, vectors, dtype=torch.float64):
    """`bfgs_product` from lists of (steps, changes), each right-aligned in `size` places."""
    n, dim = vectors.shape
    steps, changes = np.zeros((n, size, dim)), np.zeros((n, size, dim))
    count = np.zeros(n, dtype=np.int64)
    for k, (s, y) in enumerate(pairs_of_clients):
        count[k] = len(s)
        if len(s):
            steps[k, -len(s) :], changes[k, -len(s) :] = s, y
    steps, changes, vectors = (torch.from_numpy(x).to(dtype) for x in (steps, changes, vectors))
    step_gram = steps.double() @ steps.double().mT
    cross_gram = steps.double() @ changes.double().mT
    out = bfgs_product(steps, changes, step_gram, cross_gram, torch.from_numpy(count), vectors)
    assert out.dtype == dtype
    return out.double().numpy()


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-4)])
def test_compact_product_equals_dense_recursion_for_every_fill(size, dtype, tolerance):
    rng = np.random.default_rng(size)
    for _ in range(20):
        clients = [random_pairs(rng, filled) for filled in range(size + 1)]
        vectors = rng.normal(size=(size + 1, DIM))
        found = product(clients, size, vectors, dtype)
        assert not found[0].any()  # no pair, no correction
        for k in range(1, size + 1):
            expected = dense_bfgs(*clients[k]) @ vectors[k]
            error = np.linalg.norm(found[k] - expected) / np.linalg.norm(expected)
            assert error < tolerance


def test_newest_step_is_mapped_to_newest_change():
    rng = np.random.default_rng(0)
    steps, changes = random_pairs(rng, 4)
    found = product([(steps, changes)], 4, steps[-1:])
    np.testing.assert_allclose(found[0], changes[-1], rtol=1e-10)


def test_more_pairs_than_dimensions_agree_with_dense_recursion():
    # Parallel steps make S'S singular; the recursion itself is still well defined.
    steps = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    changes = steps @ np.diag([1.0, 3.0])
    vector = np.array([[0.3, -0.7]])
    found = product([(steps, changes)], 3, vector)
    np.testing.assert_allclose(found[0], dense_bfgs(steps, changes) @ vector[0], rtol=1e-9)


def test_each_client_has_its_own_matrix():
    rng = np.random.default_rng(3)
    clients = [random_pairs(rng, count) for count in (3, 0, 1, 2)]
    vectors = rng.normal(size=(4, DIM))
    together = product(clients, 3, vectors)
    alone = [product([client], 3, v[None])[0] for client, v in zip(clients, vectors, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_step_without_curvature_gives_no_correction():
    steps = np.array([[1.0, 0.0, 0.0]])
    changes = np.array([[0.0, 5.0, 0.0]])  # s'y = 0: mu = 0, nothing can be solved
    found = product([(steps, changes)], 2, np.array([[1.0, 2.0, 3.0]]))
    assert not found.any()


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
    assert np.isfinite(product([(steps, changes)], size, vector, torch.float32)).all()
