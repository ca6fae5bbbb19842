import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from reference.dense_bfgs import dense_bfgs
from stepping import products_of

from secureafl.core.types import Inner
from secureafl.kernels import reference
from secureafl.kernels.tiles import BASE, GRADIENT, OWN
from secureafl.linalg.lbfgs import Products, bfgs_product, cap

DIM = 9
LIBRARIES = {"numpy": np, "torch": torch}
for_both_libraries = pytest.mark.parametrize("xp", LIBRARIES.values(), ids=LIBRARIES.keys())


def random_pairs(rng, count, dim=DIM):
    """Steps and changes of a well-conditioned quadratic, with some noise."""
    half = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    hessian = np.eye(dim) + half @ half.T
    steps = rng.normal(size=(count, dim)) * rng.uniform(0.1, 10, size=(count, 1))
    noise = 0.05 * np.linalg.norm(steps, axis=1, keepdims=True) / np.sqrt(dim)
    return steps, steps @ hessian + noise * rng.normal(size=(count, dim))


def product(xp, pairs_of_clients, size, vectors, dtype=np.float64):
    """B v and its length, from lists of (steps, changes), each right-aligned in `size` places."""
    n, dim = vectors.shape
    steps, changes = np.zeros((n, size, dim)), np.zeros((n, size, dim))
    count = np.zeros(n, dtype=np.int64)
    for k, (s, y) in enumerate(pairs_of_clients):
        count[k] = len(s)
        if len(s):
            steps[k, -len(s) :], changes[k, -len(s) :] = s, y
    steps, changes, v = (x.astype(dtype).astype(np.float64) for x in (steps, changes, vectors))

    def number(x):
        return torch.from_numpy(x) if xp is torch else x

    def table(one, other):
        return [[number(np.vecdot(one[:, i], other[:, k])) for k in places] for i in places]

    places = range(size)
    products = Products(
        steps=table(steps, steps),
        cross=table(steps, changes),
        changes=table(changes, changes),
        along_steps=[number(np.vecdot(steps[:, i], v)) for i in places],
        along_changes=[number(np.vecdot(changes[:, i], v)) for i in places],
        squared=number(np.vecdot(v, v)),
    )
    with np.errstate(all="ignore"):
        made = bfgs_product(xp, products, number(count))
    factors = [made.of_vector, *made.of_steps, *made.of_changes]
    assert all(factor.dtype == xp.float64 for factor in [*factors, made.length])
    assert all(factor.shape == (n,) for factor in [*factors, made.length])
    parts = np.concatenate([v[:, None], steps, changes], axis=1).astype(dtype)
    with np.errstate(over="raise", invalid="raise"):
        shares = np.stack([np.asarray(factor) for factor in factors], axis=1).astype(dtype)
        return np.einsum("np,npd->nd", shares, parts).astype(np.float64), np.asarray(made.length)


@for_both_libraries
@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 2e-4)])
def test_compact_product_equals_dense_recursion_for_every_fill(xp, size, dtype, tolerance):
    rng = np.random.default_rng(size)
    for _ in range(20):
        clients = [random_pairs(rng, filled) for filled in range(size + 1)]
        vectors = rng.normal(size=(size + 1, DIM))
        found, length = product(xp, clients, size, vectors, dtype)
        assert not found[0].any()  # no pair, no correction
        assert length[0] == 0
        for k in range(1, size + 1):
            expected = dense_bfgs(*clients[k]) @ vectors[k]
            error = np.linalg.norm(found[k] - expected) / np.linalg.norm(expected)
            assert error < tolerance
            assert length[k] == pytest.approx(np.linalg.norm(expected), rel=tolerance)


@for_both_libraries
def test_newest_step_is_mapped_to_newest_change(xp):
    rng = np.random.default_rng(0)
    steps, changes = random_pairs(rng, 4)
    found, length = product(xp, [(steps, changes)], 4, steps[-1:])
    np.testing.assert_allclose(found[0], changes[-1], rtol=1e-10)
    np.testing.assert_allclose(length[0], np.linalg.norm(changes[-1]), rtol=1e-10)


@for_both_libraries
def test_more_pairs_than_dimensions_agree_with_dense_recursion(xp):
    # Parallel steps make S'S singular; the recursion itself is still well defined.
    steps = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    changes = steps @ np.diag([1.0, 3.0])
    vector = np.array([[0.3, -0.7]])
    found, length = product(xp, [(steps, changes)], 3, vector)
    expected = dense_bfgs(steps, changes) @ vector[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)
    np.testing.assert_allclose(length[0], np.linalg.norm(expected), rtol=1e-9)


@for_both_libraries
def test_each_client_has_its_own_matrix(xp):
    rng = np.random.default_rng(3)
    clients = [random_pairs(rng, count) for count in (3, 0, 1, 2)]
    vectors = rng.normal(size=(4, DIM))
    together, lengths = product(xp, clients, 3, vectors)
    for k, (client, vector) in enumerate(zip(clients, vectors, strict=True)):
        alone, length = product(xp, [client], 3, vector[None])
        np.testing.assert_allclose(together[k], alone[0], rtol=1e-12)
        np.testing.assert_allclose(lengths[k], length[0], rtol=1e-12)


@for_both_libraries
def test_step_without_curvature_gives_no_correction(xp):
    steps = np.array([[1.0, 0.0, 0.0]])
    changes = np.array([[0.0, 5.0, 0.0]])  # s'y = 0: mu = 0, nothing can be solved
    found, length = product(xp, [(steps, changes)], 2, np.array([[1.0, 2.0, 3.0]]))
    assert not found.any()
    assert length[0] == 0


exponents = st.integers(-37, 18)


@for_both_libraries
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 4),
    step_exponents=st.lists(exponents, min_size=4, max_size=4),
    change_exponents=st.lists(exponents, min_size=4, max_size=4),
    vector_exponent=exponents,
)
@example(0, 3, [0, 0, -28, 0], [0, 0, 0, 0], -16)  # a curvature beyond float32
@example(0, 1, [-21, 0, 0, 0], [9, 0, 0, 0], -11)
def test_product_is_finite_for_any_finite_float32_pairs(
    xp, seed, size, step_exponents, change_exponents, vector_exponent
):
    rng = np.random.default_rng(seed)

    def unit(count):
        rows = rng.normal(size=(count, 5))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    steps = unit(size) * 10.0 ** np.array(step_exponents[:size])[:, None]
    changes = unit(size) * 10.0 ** np.array(change_exponents[:size])[:, None]
    vector = unit(1) * 10.0**vector_exponent
    found, length = product(xp, [(steps, changes)], size, vector, np.float32)
    assert np.isfinite(found).all()
    assert np.isfinite(length).all()


@for_both_libraries
def test_cap_shortens_what_is_too_long_and_nothing_else(xp):
    length = xp.asarray([0.0, 1.0, 2.0, 8.0, xp.inf, 5.0, xp.inf])
    longest = xp.asarray([0.0, 2.0, 2.0, 2.0, 2.0, xp.inf, xp.inf])
    assert cap(xp, length, longest).tolist() == [1.0, 1.0, 1.0, 0.25, 0.0, 1.0, 1.0]


# From here on the shares of whole rings of pairs, by every version there is.


def by_torch(inner, appended, pairs, max_correction):
    return reference.shares_of_arrays(torch, *inner, appended, pairs, max_correction)


def by_llvm(*given):
    pytest.importorskip("llvmlite")
    from secureafl.kernels import cpu

    return cpu.lbfgs_shares(*given)


VERSIONS = {"numpy": reference.lbfgs_shares, "torch": by_torch, "llvm": by_llvm}
for_every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS.keys())


class Rings:
    """Clients that gave 0, 1, 2, ... pairs, of which the last `pairs` lie in a ring."""

    def __init__(self, seed, pairs, dim=2 * DIM):
        rng = np.random.default_rng(seed)
        n = 2 * pairs + 2
        self.pairs, self.given = pairs, [random_pairs(rng, count, dim) for count in range(n)]
        rows = np.zeros((n, OWN + 2 * pairs, dim))
        rows[:, GRADIENT], rows[:, BASE] = rng.normal(size=(2, n, dim))
        for client, (steps, changes) in enumerate(self.given):
            for number in range(len(steps)):  # older ones are overwritten
                place = OWN + number % pairs
                rows[client, place] = steps[number]
                rows[client, place + pairs] = changes[number]
        self.rows, self.weights = rows, rng.normal(size=dim)
        gram, along = products_of(torch.from_numpy(rows), torch.from_numpy(self.weights))
        squared = torch.tensor(self.weights @ self.weights)
        self.inner = Inner(torch.from_numpy(gram), torch.from_numpy(along), squared)
        self.appended = torch.arange(n)

    def estimates(self, version, max_correction):
        shares = version(self.inner, self.appended, self.pairs, max_correction)
        assert shares.dtype == torch.float64
        assert shares.shape == self.rows.shape[:2]
        parts = self.rows.copy()
        parts[:, BASE] = self.weights - parts[:, BASE]
        return np.einsum("ns,nsd->nd", shares.numpy(), parts)

    def expected(self, client, max_correction):
        gradient, drift = self.rows[client, GRADIENT], self.weights - self.rows[client, BASE]
        steps, changes = (part[-self.pairs :] for part in self.given[client])
        if not len(steps):
            return gradient
        correction = dense_bfgs(steps, changes) @ drift
        longest = max_correction * np.linalg.norm(gradient)
        return gradient + correction * min(1, longest / np.linalg.norm(correction))


@for_every_version
@pytest.mark.parametrize("max_correction", [0.0, 0.5, np.inf])
@pytest.mark.parametrize("pairs", range(1, 8))
def test_estimates_equal_the_dense_recursion_for_every_fill_of_the_ring(
    version, pairs, max_correction
):
    rings = Rings(pairs, pairs)
    found = rings.estimates(version, max_correction)
    for client in range(len(found)):
        expected = rings.expected(client, max_correction)
        error = np.linalg.norm(found[client] - expected)
        assert error <= 1e-9 * np.linalg.norm(expected), client


@pytest.mark.parametrize("pairs", range(1, 8))
def test_all_versions_make_the_same_of_whole_rings(pairs):
    rings = Rings(10 + pairs, pairs)
    given = rings.inner, rings.appended, pairs, 0.5
    plain = VERSIONS["numpy"](*given)
    for version in ("torch", "llvm"):
        torch.testing.assert_close(VERSIONS[version](*given), plain, rtol=1e-9, atol=1e-12)


def test_more_pairs_than_are_unrolled_are_left_to_the_plain_version():
    rings = Rings(0, 8)
    given = rings.inner, rings.appended, 8, 0.5
    assert torch.equal(by_llvm(*given), reference.lbfgs_shares(*given))


@for_every_version
def test_client_without_uploads_has_no_share_in_any_pair(version):
    nothing = Inner(
        torch.zeros(3, 8, 8, dtype=torch.float64),
        torch.zeros(3, 8, dtype=torch.float64),
        torch.tensor(4.0, dtype=torch.float64),
    )
    shares = version(nothing, torch.zeros(3, dtype=torch.int64), 3, 0.5)
    assert shares.tolist() == [[1.0] + [0.0] * 7] * 3


@for_every_version
def test_what_lies_in_empty_places_does_not_matter(version):
    rings = Rings(1, 3)
    expected = version(rings.inner, rings.appended, 3, 0.5)
    for client, place in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]:
        for slot in (OWN + place, OWN + place + 3):
            rings.inner.vectors[client, slot] = rings.inner.vectors[client, :, slot] = 7.0
            rings.inner.model[client, slot] = 7.0
    torch.testing.assert_close(version(rings.inner, rings.appended, 3, 0.5), expected)


@for_every_version
def test_inner_products_are_not_modified(version):
    rings = Rings(2, 3)
    shown = [*rings.inner, rings.appended]
    copies = [tensor.clone() for tensor in shown]
    first = version(rings.inner, rings.appended, 3, 0.5)
    assert all(torch.equal(a, b) for a, b in zip(shown, copies, strict=True))
    again = version(rings.inner, rings.appended, 3, 0.5)
    assert torch.equal(first, again)
    first.fill_(7)
    assert not (again == 7).all()


@for_every_version
@given(
    seed=st.integers(0, 2**32 - 1),
    pairs=st.integers(1, 4),
    appended=st.integers(0, 9),
    cap=st.sampled_from([0.0, 0.5, np.inf]),
    data=st.data(),
)
def test_shares_are_finite_whatever_finite_inner_products_there_are(
    version, seed, pairs, appended, cap, data
):
    # Not even of real vectors: inner products are rounded, and kept up to date for long.
    rng, slots = np.random.default_rng(seed), OWN + 2 * pairs
    powers = data.draw(st.lists(st.integers(-140, 140), min_size=slots, max_size=slots))
    sizes = 10.0 ** np.array(powers)
    gram = rng.normal(size=(slots, slots)) * np.outer(sizes, sizes)
    gram = (gram + gram.T) / 2
    gram[np.diag_indices(slots)] = np.abs(gram.diagonal())
    zeros = data.draw(st.sampled_from([0.0, 0.3]))
    gram[rng.random((slots, slots)) < zeros] = 0
    along = rng.normal(size=slots) * sizes
    inner = Inner(
        torch.from_numpy(gram)[None].clone(),
        torch.from_numpy(along)[None].clone(),
        torch.tensor(data.draw(st.sampled_from([0.0, 1e-80, 1.0, 1e80])), dtype=torch.float64),
    )
    shares = version(inner, torch.tensor([appended]), pairs, cap)
    assert torch.isfinite(shares).all()
    assert (shares.abs() <= 1e10).all()
    assert shares[0, GRADIENT] == 1


@for_every_version
@pytest.mark.parametrize("power", [-16, -3, 3, 16])
def test_shares_do_not_depend_on_the_unit_of_length(version, power):
    rings = Rings(3, 3)
    expected = version(rings.inner, rings.appended, 3, 0.5)
    inner = Inner(*(part * 10.0 ** (2 * power) for part in rings.inner))
    found = version(inner, rings.appended, 3, 0.5)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
