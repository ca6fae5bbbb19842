"""The fast versions of trust weights against the plain one; a GPU's where there is one."""

from importlib import import_module

import pytest
import torch

from secureafl.core.trees import name_tensors, rebuild
from secureafl.core.trust import ClientStats, ConsistencyStats, CurvatureStats, TrustConfig
from secureafl.core.types import Arrival, SecantProducts
from secureafl.core.uploads import Uploads
from secureafl.kernels import reference

CLIENTS = [1, 2, 7, 32, 50, 101, 300, 512, 600]
CONFIG = TrustConfig(0.95, 0.8, 4.0, 4.0, consistency=True, curvature=True)


@pytest.fixture(params=["cpu", "gpu"])
def fast(request):
    """A version of the operations, on its device."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if request.param == "cpu":
        pytest.importorskip("llvmlite")
    with torch.device("cuda" if request.param == "gpu" else "cpu"):
        yield import_module(f"secureafl.kernels.{request.param}")


def stats_of(clients):
    """Random statistics of clients, some of them alike and some noisy."""
    torch.manual_seed(clients)
    exact = {"dtype": torch.float64}
    rows = torch.randn(clients, 40, **exact)
    rows[clients // 2 :] += 2 * torch.randn(40, **exact)  # alike clients
    rows[::5] /= 9  # mostly noise
    number, other = torch.rand(2, clients, **exact)
    count = torch.randint(0, 60, (clients,))
    curvature = CurvatureStats(0.2 * number - 0.02, other / 9, count)
    consistency = ConsistencyStats(40 + 100 * other, 0.6 * number**2)
    return ClientStats(20 * other, consistency, curvature, rows @ rows.T, number)


def numbers_in(stats):
    return name_tensors(stats, "")


def copied(stats):
    return rebuild(stats, "", {name: field.clone() for name, field in numbers_in(stats).items()})


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def some_known(clients, share):
    return torch.rand(clients) < share


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize(("similarity_penalty", "disagreement_penalty"), [(4.0, 4.0), (0.0, 1.0)])
def test_similarity_weights_are_the_plain_ones(
    fast, clients, similarity_penalty, disagreement_penalty
):
    for share_known in (0.0, 0.5, 1.0):
        known = some_known(clients, share_known)
        given = (stats_of(clients).gram, known, similarity_penalty, disagreement_penalty)
        found, expected = (v.similarity_weights(*given) for v in (fast, reference))
        tolerance = 1e-12 if found.device.type == "cpu" else 1e-7
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


SETTINGS = [
    {},
    {"consistency": False},
    {"curvature": False},
    {"similarity_penalty": 0.0, "memory": 0.5},
    {"arrival_decay": 1.0, "disagreement_penalty": 0.0},
]


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("changed", SETTINGS)
def test_weights_are_the_plain_ones(fast, clients, changed):
    for share_known in (0.1, 0.5, 1.0):
        stats, client = stats_of(clients), torch.tensor(clients // 3)
        known = some_known(clients, share_known).index_fill_(0, client.view(1), True)
        products = stats.gram[client].float() * 1.1
        results = []
        for version in (fast, reference):
            own = copied(stats)
            found = version.weigh_clients(own, known, client, products, CONFIG._replace(**changed))
            results.append([*found, *numbers_in(own).values()])
        assert_same(*results)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("known_before", [True, False])
@pytest.mark.parametrize("clip_to_median_norm", [True, False])
@pytest.mark.parametrize("moved", [0.0, 3.0, torch.inf])
def test_updated_statistics_are_the_plain_ones(
    fast, clients, known_before, clip_to_median_norm, moved
):
    stats, known = stats_of(clients), some_known(clients, 0.8)
    client = torch.tensor(clients // 2)
    found = torch.tensor([moved, -1.5, 2.0, 0.5], dtype=torch.float64)
    secant = SecantProducts(torch.tensor(known_before), *found.unbind())
    results = []
    for version in (fast, reference):
        own, others = copied(stats), known.clone()
        scale = version.update_stats(own, others, client, secant, 0.3, clip_to_median_norm, 0.9)
        results.append([scale, others, *numbers_in(own).values()])
    assert_same(*results)


@pytest.mark.parametrize("size", [1, 31, 5000, 139_960])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("known_before", [True, False])
def test_momenta_are_the_plain_ones(fast, size, dtype, known_before):
    rows = torch.randn(4, 5, size, dtype=dtype)
    gradient, base = torch.randn(2, size, dtype=dtype)
    arrival = Arrival(torch.tensor(3), torch.tensor(0), gradient, base)
    given = (torch.tensor(known_before), torch.tensor(0.3).double())
    results = []
    for version in (fast, reference):
        sent, base, recent_update, update_history = rows.clone()
        known = torch.ones(5, dtype=torch.bool)
        mine = version.update_momentum(
            Uploads(sent, base, known), recent_update, update_history, arrival, *given, 0.5, 0.9
        )
        results.append([mine, sent, base, recent_update, update_history])
    assert_same(*results)


@pytest.mark.parametrize("size", [1, 31, 5000, 139_960])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secant_products_are_the_plain_ones(fast, size, dtype):
    rows = torch.randn(2, 5, size, dtype=dtype)
    uploads = Uploads(*rows, torch.arange(5) % 2 == 0)
    for k in range(5):
        gradient, base = torch.randn(2, size, dtype=dtype)
        arrival = Arrival(torch.tensor(k), torch.tensor(0), gradient, base)
        both = (version.secant_products(uploads, arrival) for version in (fast, reference))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-4)
