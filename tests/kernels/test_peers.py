"""The fast versions of trust from peers against the plain one."""

import pytest
import torch
from emulated_cuda import GPU, costly

from secureafl.kernels import cpu_peers, reference

CLIENTS = [1, 2, 3, 7, 19, 20, 31, 32, 33, 50, 64, 100, 128, 140]
_COSTLY = {*CLIENTS} - {7, 33, 140}  # where kernels are compiled for each of them
CASES = [("cpu", n) for n in CLIENTS]
CASES += [costly("gpu", n) if n in _COSTLY else ("gpu", n) for n in CLIENTS]


def histories(clients, size):
    """Clients of six kinds; a quarter of them share a direction, and one sends nothing."""
    torch.manual_seed(clients)
    kinds = torch.randn(6, size)
    rows = kinds[torch.arange(clients) % 6] + 0.5 * torch.randn(clients, size)
    rows[: clients // 4] = 1.4 * torch.randn(size) + 0.5 * torch.randn(clients // 4, size)
    rows[clients // 2] = 0
    rows[1] *= 3
    return rows


def colluding(clients, size):
    """Clients of eight kinds, of whom a quarter adds the same to what its kind sends."""
    torch.manual_seed(clients)
    rows = torch.randn(8, size)[torch.arange(clients) % 8] + 0.2 * torch.randn(clients, size)
    rows[torch.arange(clients) % 4 == torch.arange(clients) // 8 % 4] += torch.randn(size)
    return rows


@pytest.mark.parametrize(("version", "clients"), CASES)
@pytest.mark.parametrize("share_known", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("crowd", "neighbours"), [(histories, False), (colluding, True)])
def test_weights_are_the_plain_ones(request, version, clients, share_known, crowd, neighbours):
    fast = cpu_peers if version == "cpu" else request.getfixturevalue("gpu")
    rows, known = crowd(clients + 3, 300), torch.rand(clients + 3) < share_known
    given = rows, torch.randperm(clients + 3)[:clients], known, torch.tensor(True)
    trust = (torch.rand(clients + 3, dtype=torch.float64),) if neighbours else ()
    expected = reference.peer_weights(*given, *trust)
    place = GPU if version == "gpu" else "cpu"
    found = fast.peer_weights(*(tensor.to(place) for tensor in (*given, *trust)))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4)
    if neighbours and share_known == 1.0 and clients >= 31:
        assert (expected < reference.peer_weights(*given)).any(), "neighbours say something here"


def test_where_it_is_not_due_nothing_is_read(gpu):
    """Histories that are not there at all would be an illegal address."""
    members = torch.full((50,), 1 << 40, device=GPU)
    known, due = torch.ones(50, dtype=torch.bool, device=GPU), torch.tensor(False, device=GPU)
    gpu.peer_weights(torch.zeros(50, 64, device=GPU), members, known, due)
    if GPU == "cuda":
        torch.cuda.synchronize()
