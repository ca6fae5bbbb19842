"""The fast versions of trust against the plain one; a GPU's where there is one."""

from importlib import import_module

import pytest
import torch

from secureafl.core.trees import name_tensors, rebuild
from secureafl.core.trust import Bends, Constancy, Doubts, Notes
from secureafl.core.types import Arrival, News
from secureafl.core.uploads import Uploads
from secureafl.kernels import reference

CLIENTS = [1, 2, 7, 32, 50, 101, 300, 512, 600]
DOUBTS = Doubts(0.95, 0.8, 4.0, 4.0, constancy=True, bending=True)


@pytest.fixture(params=["cpu", "gpu"])
def fast(request):
    """A version of the operations, on its device."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if request.param == "cpu":
        pytest.importorskip("llvmlite")
    with torch.device("cuda" if request.param == "gpu" else "cpu"):
        yield import_module(f"secureafl.kernels.{request.param}")


def noted_of(clients):
    """Notes of clients, some of them a crowd and some noisy, at random."""
    torch.manual_seed(clients)
    exact = {"dtype": torch.float64}
    rows = torch.randn(clients, 40, **exact)
    rows[clients // 2 :] += 2 * torch.randn(40, **exact)  # a crowd
    rows[::5] /= 9  # hardly anything of what these say stays
    number, other = torch.rand(2, clients, **exact)
    count = torch.randint(0, 60, (clients,))
    bends = Bends(0.2 * number - 0.02, other / 9, count)
    constancy = Constancy(40 + 100 * other, 0.6 * number**2)
    return Notes(20 * other, constancy, bends, rows @ rows.T, number)


def numbers_in(notes):
    return name_tensors(notes, "")


def copied(notes):
    return rebuild(notes, "", {name: field.clone() for name, field in numbers_in(notes).items()})


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def some_known(clients, share):
    return torch.rand(clients) < share


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize(("crowding", "approval"), [(4.0, 4.0), (0.0, 1.0)])
def test_standing_is_the_plain_one(fast, clients, crowding, approval):
    for share_known in (0.0, 0.5, 1.0):
        known = some_known(clients, share_known)
        given = (noted_of(clients).gram, known, crowding, approval)
        torch.testing.assert_close(fast.standing(*given), reference.standing(*given))


SETTINGS = [
    {},
    {"constancy": False},
    {"bending": False},
    {"crowding": 0.0, "memory": 0.5},
    {"fading": 1.0, "approval": 0.0},
]


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("changed", SETTINGS)
def test_weights_are_the_plain_ones(fast, clients, changed):
    for share_known in (0.1, 0.5, 1.0):
        notes, client = noted_of(clients), torch.tensor(clients // 3)
        known = some_known(clients, share_known).index_fill_(0, client.view(1), True)
        products = notes.gram[client].float() * 1.1
        results = []
        for version in (fast, reference):
            own = copied(notes)
            found = version.weigh(own, known, client, products, DOUBTS._replace(**changed))
            results.append([*found, *numbers_in(own).values()])
        assert_same(*results)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("shorten", [True, False])
@pytest.mark.parametrize("moved", [0.0, 3.0, torch.inf])
def test_notes_are_the_plain_ones(fast, clients, heard, shorten, moved):
    notes, known = noted_of(clients), some_known(clients, 0.8)
    client = torch.tensor(clients // 2)
    found = torch.tensor([moved, -1.5, 2.0, 0.5], dtype=torch.float64)
    news = News(torch.tensor(heard), *found.unbind())
    results = []
    for version in (fast, reference):
        own, others = copied(notes), known.clone()
        scale = version.take_note(own, others, client, news, 0.3, shorten, 0.9)
        results.append([scale, others, *numbers_in(own).values()])
    assert_same(*results)


@pytest.mark.parametrize("size", [1, 31, 5000, 139_960])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heard", [True, False])
def test_what_is_remembered_is_the_plain_thing(fast, size, dtype, heard):
    rows = torch.randn(4, 5, size, dtype=dtype)
    gradient, base = torch.randn(2, size, dtype=dtype)
    arrival = Arrival(torch.tensor(3), torch.tensor(0), gradient, base)
    given = (torch.tensor(heard), torch.tensor(0.3).double())
    results = []
    for version in (fast, reference):
        sent, base, word, record = rows.clone()
        known = torch.ones(5, dtype=torch.bool)
        mine = version.remember(Uploads(sent, base, known), word, record, arrival, *given, 0.5, 0.9)
        results.append([mine, sent, base, word, record])
    assert_same(*results)


@pytest.mark.parametrize("size", [1, 31, 5000, 139_960])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uploads_beside_the_last_are_the_plain_ones(fast, size, dtype):
    rows = torch.randn(2, 5, size, dtype=dtype)
    uploads = Uploads(*rows, torch.arange(5) % 2 == 0)
    for k in range(5):
        gradient, base = torch.randn(2, size, dtype=dtype)
        arrival = Arrival(torch.tensor(k), torch.tensor(0), gradient, base)
        both = (version.compare(uploads, arrival) for version in (fast, reference))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-4)
