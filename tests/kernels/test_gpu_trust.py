"""The GPU's version of trust against the plain one, where there is a GPU."""

import pytest
import torch

from secureafl.core.trust import Bends
from secureafl.core.types import Arrival, News
from secureafl.core.uploads import Uploads
from secureafl.kernels import reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CLIENTS = [1, 2, 7, 32, 50, 101, 300, 512, 600]


def numbers_of(clients, share_known=0.8):
    """Inner products, who is known, and bends, at random."""
    torch.manual_seed(clients)
    rows = torch.randn(clients, 40, dtype=torch.float64, device="cuda")
    rows[clients // 2 :] += 2 * torch.randn(40, dtype=torch.float64, device="cuda")  # a crowd
    known = torch.rand(clients, device="cuda") < share_known
    mean = 0.2 * torch.rand(clients, dtype=torch.float64, device="cuda") - 0.02
    count = torch.randint(0, 60, (clients,), device="cuda")
    return rows @ rows.T, known, Bends(mean, torch.rand_like(mean) / 9, count)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize(("crowding", "approval"), [(4.0, 4.0), (0.0, 1.0)])
def test_standing_is_the_plain_one(gpu, clients, crowding, approval):
    for share_known in (0.0, 0.5, 1.0):
        gram, known, _ = numbers_of(clients, share_known)
        given = (gram, known, crowding, approval)
        torch.testing.assert_close(gpu.standing(*given), reference.standing(*given))


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("shorten", [True, False])
@pytest.mark.parametrize("moved", [0.0, 3.0, torch.inf])
def test_notes_are_the_plain_ones(gpu, clients, heard, shorten, moved):
    _, known, bends = numbers_of(clients)
    lengths = torch.rand(clients, dtype=torch.float64, device="cuda") * known
    client = torch.tensor(clients // 2, device="cuda")
    known[client] = True
    found = torch.tensor([moved, -1.5, 2.0, 0.5], dtype=torch.float64, device="cuda")
    news = News(torch.tensor(heard, device="cuda"), *found.unbind())
    results = []
    for version in (gpu, reference):
        own, notes = lengths.clone(), Bends(*(field.clone() for field in bends))
        scale = version.take_note(own, notes, known, client, news, 0.3, shorten, 0.9)
        results.append([scale, own, *notes])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [1, 31, 5000, 139_960])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uploads_beside_the_last_are_the_plain_ones(gpu, size, dtype):
    rows = torch.randn(2, 5, size, device="cuda", dtype=dtype)
    uploads = Uploads(*rows, torch.arange(5, device="cuda") % 2 == 0)
    for k in range(5):
        gradient, base = torch.randn(2, size, device="cuda", dtype=dtype)
        arrival = Arrival(torch.tensor(k, device="cuda"), torch.tensor(0), gradient, base)
        both = (version.compare(uploads, arrival) for version in (gpu, reference))
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-4)
        torch.testing.assert_close(gpu.distance(gradient, base), (gradient - base).norm())
