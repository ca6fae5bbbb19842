"""Trust weights worked out by hand or with loops, for every version of the operations."""

from importlib import import_module

import numpy as np
import pytest
import torch
from reference import secure_afl_hardened as oracle

from secureafl.core.trust import (
    ClientStats,
    ConsistencyStats,
    CurvatureStats,
    TrustConfig,
    effective_samples,
    no_client_stats,
)
from secureafl.core.types import Arrival, SecantProducts
from secureafl.core.uploads import Uploads

OFF = TrustConfig(
    memory=0.95,
    arrival_decay=1.0,
    similarity_penalty=0.0,
    disagreement_penalty=0.0,
    consistency=False,
    curvature=False,
)


@pytest.fixture(params=["reference", "cpu", "gpu"])
def version(request):
    """A version of the operations, on its device."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if request.param == "cpu":
        pytest.importorskip("llvmlite")
    with torch.device("cuda" if request.param == "gpu" else "cpu"):
        yield import_module(f"secureafl.kernels.{request.param}")


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def stats_of(squares, noise=0.0, mean=(), variance=0.0, count=0):
    """Statistics of clients with these squares of their histories; all uploads have norm 1."""
    ones = torch.ones(len(squares), dtype=torch.float64)
    counts = torch.ones(len(squares), dtype=torch.int64)
    return ClientStats(
        ones.clone(),
        ConsistencyStats(ones.clone(), noise * ones),
        CurvatureStats(exact(mean or [1.0] * len(squares)), variance * ones, counts * count),
        torch.diag(exact(squares)),
        ones.clone(),
    )


def weights_of(version, stats, known=None, client=0, **changed):
    """Weights of all clients, from their shares relative to the first one's, and the result."""
    known = torch.ones(len(stats.gram), dtype=torch.bool) if known is None else known
    products = stats.gram[client].float()
    config = OFF._replace(**changed)
    found = version.weigh_clients(stats, known, torch.tensor(client), products, config)
    return (found.shares / found.shares[0]).tolist(), found


@pytest.mark.parametrize(
    ("square", "weight"),
    [
        (0.05, 0.0),
        (0.095, 0.0),
        (0.1, 0.025),
        (0.195, 0.5),
        (0.29, 0.975),
        (0.295, 1.0),
        (0.9, 1.0),
    ],
)
def test_consistency_weight_rises_from_a_tenth_to_three_tenths_with_an_allowance(
    version, square, weight
):
    found, _ = weights_of(version, stats_of([1.0, 1.0, 1.0, square]), consistency=True)
    assert found == pytest.approx([1, 1, 1, weight], abs=1e-6)


@pytest.mark.parametrize(("noise", "weight"), [(0.5, 1.0), (0.499, 0.0)])
def test_consistency_counts_only_once_noise_would_have_halved(version, noise, weight):
    stats = stats_of([1.0, 1.0, 1.0, noise], noise=noise)  # the last sends noise alone
    found, _ = weights_of(version, stats, consistency=True)
    assert found == pytest.approx([1, 1, 1, weight], abs=1e-6)


def test_noise_is_taken_off_what_is_compared(version):
    stats = stats_of([1.0, 1.0, 1.0, 0.25 + 0.75 * 0.195], noise=0.25)
    found, _ = weights_of(version, stats, consistency=True)
    assert found == pytest.approx([1, 1, 1, 0.5], abs=1e-6)


@pytest.mark.parametrize(("mean", "weight"), [(0.15, 0.0), (0.25, 0.2), (0.4, 0.5), (0.65, 1.0)])
def test_curvature_weight_rises_from_a_quarter_to_three_quarters_with_a_standard_error(
    version, mean, weight
):
    # An error of 0.1, which is added to the mean; that of the median client is not.
    stats = stats_of([1.0] * 4, mean=[1.0, 1.0, 1.0, mean], variance=0.04, count=4)
    found, _ = weights_of(version, stats, curvature=True)
    assert found == pytest.approx([1, 1, 1, weight], abs=1e-6)


@pytest.mark.parametrize(("count", "weight"), [(2, 1.0), (3, 0.0)])
def test_curvature_counts_from_the_third_observation(version, count, weight):
    stats = stats_of([1.0] * 4, mean=[1.0, 1.0, 1.0, -1.0], count=9)
    stats.curvature.count[3] = count
    found, _ = weights_of(version, stats, curvature=True)
    assert found == pytest.approx([1, 1, 1, weight], abs=1e-6)


def test_moving_average_is_worth_a_limited_number_of_samples(version):
    assert [effective_samples(memory) for memory in (0.0, 0.5, 0.95)] == [1, 3, 39]
    stats = stats_of([1.0] * 4, mean=[1.0, 1.0, 1.0, 0.4], variance=0.03, count=1000)
    found, _ = weights_of(version, stats, curvature=True, memory=0.5)
    assert found == pytest.approx([1, 1, 1, 0.5], abs=1e-6)


def test_noisy_client_is_left_out_of_the_median_curvature(version):
    # With the last two, the median would be 0.4 and the third client's weight 0.
    stats = stats_of([1.0, 1.0, 1.0, 0.01, 0.01], mean=[0.4, 0.2, 0.1, 1.0, 1.0], count=9)
    found, _ = weights_of(version, stats, consistency=True, curvature=True)
    assert found == pytest.approx([1, 1, 0.5, 0, 0], abs=1e-6)


@pytest.mark.parametrize("spread", [1e-3, 1e-2, 3e-2, 1.0])
def test_directions_near_the_centre_are_neither_alike_nor_opposed(version, spread):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=6) + spread * rng.choice([-1, 1], size=(9, 1)) * rng.normal(size=6)
    gram, known = torch.tensor(rows @ rows.T), torch.ones(9, dtype=torch.bool)
    found = version.similarity_weights(gram, known, 1.0, 2.0).tolist()
    assert found == pytest.approx(oracle.similarity_weights(list(rows), 1.0, 2.0), rel=1e-6)
    assert (min(found) > 0.9) == (spread == 1e-3)


@pytest.mark.parametrize(("clients", "known", "length"), [(20, 4, 0.4), (20, 10, 1), (5, 4, 0.8)])
def test_steps_have_full_length_from_ten_known_clients(version, clients, known, length):
    mask = torch.arange(clients) < known
    _, found = weights_of(version, stats_of([1.0] * clients), mask)
    assert float(found.shares.sum()) == pytest.approx(length)
    assert float(found.total) == pytest.approx(known)


def test_weight_decays_with_every_arrival_of_others(version):
    stats = stats_of([1.0] * 10)
    for client in (1, 0):
        found, result = weights_of(version, stats, client=client, arrival_decay=0.5)
    assert found == pytest.approx([1, 0.5] + [0.25] * 8)
    assert float(result.own) == 1
    assert float(result.total) == pytest.approx(3.5)


def secant(known, ss=0.0, sy=0.0, yy=0.0, squared=1.0):
    return SecantProducts(torch.tensor(known), *exact([ss, sy, yy, squared]).unbind())


def updated(version, stats, known, client, given, median=False, memory=0.9):
    scale = version.update_stats(stats, known, torch.tensor(client), given, 2.0, median, memory)
    return float(scale)


def test_only_a_first_upload_is_clipped_to_the_given_norm(version):
    stats = no_client_stats(3, torch.get_default_device())
    known = torch.zeros(3, dtype=torch.bool)
    assert updated(version, stats, known, 1, secant(False, squared=64.0)) == 0.25
    assert known.tolist() == [False, True, False]
    assert stats.norms.tolist() == [0, 2, 0]
    assert updated(version, stats, known, 1, secant(True, squared=64.0)) == 1
    assert stats.norms.tolist() == [0, 8, 0]


def test_uploads_are_clipped_to_the_lower_median_norm_of_known_clients(version):
    stats = no_client_stats(4, torch.get_default_device())
    stats.norms[:3] = exact([1.0, 3.0, 1000.0])
    known = torch.tensor([True, True, False, False])
    assert updated(version, stats, known, 3, secant(True, squared=16.0), True) == 0.75
    assert stats.norms.tolist() == [1, 3, 1000, 4]  # as sent: the median is of these
    assert updated(version, stats, known, 2, secant(True, squared=4.0), True) == 1


def test_consistency_follows_the_clipped_uploads(version):
    stats = no_client_stats(2, torch.get_default_device())
    known = torch.zeros(2, dtype=torch.bool)
    updated(version, stats, known, 0, secant(False, squared=16.0))
    assert [float(kind[0]) for kind in stats.consistency] == pytest.approx([4, 1])
    updated(version, stats, known, 0, secant(True, squared=9.0))
    assert [float(kind[0]) for kind in stats.consistency] == pytest.approx([4.5, 0.82])
    assert [float(kind[1]) for kind in stats.consistency] == [0, 0]


def test_curvature_is_a_mean_at_first_and_a_moving_average_later(version):
    stats = no_client_stats(2, torch.get_default_device())
    known = torch.ones(2, dtype=torch.bool)
    for cosine in (1.0, 0.0, -1.0):
        updated(version, stats, known, 1, secant(True, 4.0, 6 * cosine, 9.0), memory=0.6)
    # Rates 1, 1/2 and 0.4 (above 1/3): means 1, 0.5, -0.1; variances 0, 0.25, 0.6 (0.25 + 0.9).
    found = [float(kind[1]) for kind in stats.curvature]
    assert found == pytest.approx([-0.1, 0.69, 3])


@pytest.mark.parametrize("given", [(False, 4.0, 6.0, 9.0), (True, 0.0, 0.0, 9.0)])
def test_curvature_needs_an_earlier_upload_and_a_moved_model(version, given):
    stats = no_client_stats(1, torch.get_default_device())
    updated(version, stats, torch.ones(1, dtype=torch.bool), 0, secant(*given))
    assert [float(kind[0]) for kind in stats.curvature] == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("known", "recent", "history"), [(True, 5.0, 8.0), (False, 2.0, 2.0)], ids=["known", "first"]
)
def test_momenta_are_moving_averages_of_scaled_uploads(version, dtype, known, recent, history):
    sent, base, recent_update, update_history = (torch.full((4, 3, 2), 10.0, dtype=dtype)).unbind()
    recent_update, update_history = recent_update - 2, update_history - 0.5
    arrival = Arrival(
        torch.tensor(1), torch.tensor(0), torch.tensor([4.0, -4.0]).to(dtype), base[0] + 1
    )
    uploads = Uploads(sent.clone(), base.clone(), torch.ones(3, dtype=torch.bool))
    mine = version.update_momentum(
        uploads,
        recent_update,
        update_history,
        arrival,
        torch.tensor(known),
        exact(0.5),
        0.5,
        0.8,
    )
    assert recent_update[:, 0].tolist() == pytest.approx([8, recent, 8])
    assert update_history[:, 0].tolist() == pytest.approx([9.5, history, 9.5])
    assert torch.equal(mine, update_history[1])
    assert uploads.gradient[1].tolist() == [4, -4]
    assert uploads.base[1].tolist() == [11, 11]
