import numpy as np
import pytest
import torch
from estimating import estimated, fed
from hypothesis import given
from hypothesis import strategies as st
from reference import estimators as oracle
from stepping import always_compiled, always_plain

from secureafl.core.errors import ConfigError
from secureafl.estimators import HistoryMean, LastUpdate, Lbfgs
from secureafl.kernels.tiles import BASE, OWN, read_client

DIM, CLIENTS = 6, 4
KERNELS = {"plain": always_plain, "compiled": always_compiled}
for_both_kernels = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS.keys())


def smooth_uploads(rng, count, noise=0.1):
    """(client, gradient, base, keep) with gradients of quadratics, so that curvature exists."""
    hessian = rng.uniform(0.5, 2.0, size=DIM)
    uploads = []
    for _ in range(count):
        client, base = int(rng.integers(CLIENTS)), rng.normal(size=DIM)
        if uploads and rng.random() < 0.15:
            client, base = uploads[-1][0], uploads[-1][2]  # the same model again
        gradient = hessian * base + client + noise * rng.normal(size=DIM)
        uploads.append((client, gradient, base, bool(rng.random() < 0.8)))
    return uploads


def estimates(estimator, uploads, weights, dtype=torch.float64):
    """One row per client, as the package makes them, and what each client was kept to have sent."""
    weights = torch.from_numpy(weights).to(dtype)
    sent, tensors = {}, []
    for client, gradient, base, keep in uploads:
        tensors.append((client, *(torch.from_numpy(x).to(dtype) for x in (gradient, base)), keep))
        if keep:
            sent.setdefault(client, []).append((gradient, base))
    rows = estimated(estimator, *fed(estimator, CLIENTS, tensors, weights), weights)
    assert rows.dtype == dtype
    return rows.double().numpy(), sent


def check(estimator, one, seed, count, dtype=torch.float64, tolerance=1e-9):
    rng = np.random.default_rng(seed)
    uploads, weights = smooth_uploads(rng, count), rng.normal(size=DIM)
    rows, sent = estimates(estimator, uploads, weights, dtype)
    assert np.isfinite(rows).all()
    for client, theirs in sent.items():
        expected = one(theirs, weights)
        error = np.linalg.norm(rows[client] - expected)
        assert error <= tolerance * np.linalg.norm(expected)


seeds = st.integers(0, 2**32 - 1)
counts = st.integers(1, 30)


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 5])
@pytest.mark.parametrize("cap", [0.0, 0.5, float("inf")])
@given(seed=seeds, count=counts)
def test_lbfgs_equals_the_dense_matrix_with_safeguards(buffer_size, cap, seed, count):
    def one(sent, weights):
        return oracle.lbfgs(sent, weights, buffer_size, 1e-3, cap)

    check(Lbfgs(buffer_size, 1e-3, cap), one, seed, count)


@for_both_kernels
@given(seed=seeds, count=counts)
def test_lbfgs_in_float32_is_close_to_the_dense_matrix(kernels, seed, count):
    def one(sent, weights):
        return oracle.lbfgs(sent, weights, 3, 1e-3, 0.5)

    with kernels():
        check(Lbfgs(), one, seed, count, torch.float32, 2e-3)


@given(seed=seeds, count=counts)
def test_last_update_repeats_each_clients_last_upload(seed, count):
    check(LastUpdate(), oracle.last_update, seed, count, tolerance=0.0)


@for_both_kernels
@given(seed=seeds, count=counts)
def test_last_update_in_float32_is_rounded_once(kernels, seed, count):
    with kernels():
        check(LastUpdate(), oracle.last_update, seed, count, torch.float32, 1e-7)


@pytest.mark.parametrize("length", [1, 2, 5])
@given(seed=seeds, count=counts)
def test_history_mean_averages_the_last_uploads(length, seed, count):
    def one(sent, weights):
        return oracle.history_mean(sent, weights, length)

    check(HistoryMean(length), one, seed, count, tolerance=1e-12)


@for_both_kernels
@pytest.mark.parametrize("length", [1, 3])
@given(seed=seeds, count=counts)
def test_history_mean_in_float32_is_close(kernels, length, seed, count):
    def one(sent, weights):
        return oracle.history_mean(sent, weights, length)

    with kernels():
        check(HistoryMean(length), one, seed, count, torch.float32, 1e-4)


def quadratic(number):
    """The number-th upload of a client, all of them unlike each other: (gradient, base)."""
    base = np.random.default_rng(number).normal(size=DIM)
    return 1.5 * base + 0.01 * number, base


@pytest.mark.parametrize("buffer_size", [1, 2, 3])
@for_both_kernels
def test_pairs_lie_in_a_ring(kernels, buffer_size):
    weights = torch.zeros(DIM)
    sent = [tuple(torch.from_numpy(x).float() for x in quadratic(k)) for k in range(8)]
    for count in range(1, len(sent) + 1):
        with kernels():
            uploads = [(0, *upload, True) for upload in sent[:count]]
            memory, notes = fed(Lbfgs(buffer_size), 1, uploads, weights)
        assert notes.appended.tolist() == [count - 1]
        rows = read_client(memory.vectors, torch.tensor(0), DIM)[OWN:]
        for number in range(max(0, count - 1 - buffer_size), count - 1):
            (gradient, base), (new_gradient, new_base) = sent[number : number + 2]
            place = number % buffer_size
            assert torch.equal(rows[place], new_base - base)
            assert torch.equal(rows[place + buffer_size], new_gradient - gradient)


@for_both_kernels
def test_uploads_lie_in_a_ring(kernels):
    weights = torch.zeros(DIM)
    sent = [tuple(torch.from_numpy(x).float() for x in quadratic(k)) for k in range(7)]
    for count in range(1, len(sent) + 1):
        with kernels():
            uploads = [(0, *upload, True) for upload in sent[:count]]
            memory, notes = fed(HistoryMean(3), 1, uploads, weights)
        assert notes.count.tolist() == [count]
        rows = read_client(memory.vectors, torch.tensor(0), DIM)[OWN:]
        for number in range(max(0, count - 3), count):
            assert torch.equal(rows[number % 3], sent[number][0])


def test_correction_is_no_longer_than_its_share_of_the_gradient():
    base, far = np.zeros(DIM), np.full(DIM, 1e3)
    uploads = [(0, base + 1, base, True), (0, base + 4, base + 3, True)]
    rows, _ = estimates(Lbfgs(max_correction=0.25), uploads, far)
    last = base + 4
    assert np.linalg.norm(rows[0] - last) == pytest.approx(0.25 * np.linalg.norm(last))


@pytest.mark.parametrize("slope", [-1.0, 0.0, 1e-3])
def test_pair_without_clear_curvature_is_not_stored(slope):
    weights = torch.zeros(DIM, dtype=torch.float64)
    step = torch.zeros_like(weights)
    step[0] = 1.0
    uploads = [(0, weights, weights, True), (0, slope * step, step, True)]
    memory, notes = fed(Lbfgs(min_curvature=1e-3), 1, uploads, weights)
    assert int(notes.appended[0]) == 0
    rows = read_client(memory.vectors, torch.tensor(0), DIM)
    assert torch.equal(rows[BASE], step)  # the upload itself is
    assert not rows[OWN:].any()


def test_upload_that_is_not_kept_leaves_no_trace():
    rng = np.random.default_rng(0)
    uploads, weights = smooth_uploads(rng, 12), rng.normal(size=DIM)
    kept = [u for u in uploads if u[3]]
    for estimator in (Lbfgs(), LastUpdate(), HistoryMean()):
        with_others, _ = estimates(estimator, uploads, weights)
        without, _ = estimates(estimator, kept, weights)
        assert np.array_equal(with_others, without)


def test_bare_method_stays_finite_when_the_small_system_is_singular():
    bare = Lbfgs(min_curvature=float("-inf"), max_correction=float("inf"))
    base = np.zeros(DIM)
    flat = [(0, base + 1, base, True), (0, base + 1, base + 2, True)]  # y = 0
    rows, _ = estimates(bare, flat, base + 5)
    assert np.array_equal(rows[0], base + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lbfgs(buffer_size=0),
        lambda: Lbfgs(max_correction=-1.0),
        lambda: HistoryMean(length=0),
    ],
)
def test_setting_out_of_range_is_refused(make):
    with pytest.raises(ConfigError, match="="):
        make()
