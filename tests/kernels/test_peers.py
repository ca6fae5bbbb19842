"""The fast versions of trust from peers against the plain one; a GPU's where there is one."""

import pytest
import torch

from secureafl.kernels import cpu_peers, reference

CLIENTS = [1, 2, 3, 7, 19, 20, 31, 32, 33, 50, 64, 100, 128, 140]


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from secureafl.kernels import gpu

    return gpu


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


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("share_known", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("crowd", "neighbours"), [(histories, False), (colluding, True)])
def test_weights_are_the_plain_ones(request, device, clients, share_known, crowd, neighbours):
    fast = cpu_peers if device == "cpu" else request.getfixturevalue("gpu")
    rows, known = crowd(clients + 3, 300), torch.rand(clients + 3) < share_known
    given = rows, torch.randperm(clients + 3)[:clients], known, torch.tensor(True)
    trust = (torch.rand(clients + 3, dtype=torch.float64),) if neighbours else ()
    expected = reference.peer_weights(*given, *trust)
    found = fast.peer_weights(*(tensor.to(device) for tensor in (*given, *trust)))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4)
    if neighbours and share_known == 1.0 and clients >= 31:
        assert (expected < reference.peer_weights(*given)).any(), "neighbours say something here"


def test_where_it_is_not_due_nothing_is_read(gpu):
    """Histories that are not there at all would be an illegal address."""
    members = torch.full((50,), 1 << 40, device="cuda")
    known, due = torch.ones(50, dtype=torch.bool, device="cuda"), torch.tensor(False, device="cuda")
    gpu.peer_weights(torch.zeros(50, 64, device="cuda"), members, known, due)
    torch.cuda.synchronize()
