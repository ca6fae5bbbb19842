"""Order statistics on a GPU against those in plain torch."""

import pytest
import torch
from emulated_cuda import GPU, costly

from secureafl.kernels import order
from secureafl.linalg.order import order_mean_reference

pytestmark = pytest.mark.usefixtures("gpu")

CASES = [(1, 5), (7, 77), (50, 1000), (65, 50), (200, 40)]
CASES += [costly(*case) for case in [(2, 1), (20, 300), (49, 129), (64, 128)]]


def on_gpu(number):
    return torch.tensor(number, device=GPU)


@pytest.mark.parametrize(("clients", "size"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_of_order_statistics_are_the_plain_ones(clients, size, dtype):
    torch.manual_seed(clients)
    values = torch.randn(clients, size, device=GPU, dtype=dtype)
    values[:, 0] = 1
    for absent in {0, 1, clients // 2}:
        present = torch.randperm(clients, device=GPU) >= min(absent, clients - 1)
        count = int(present.sum())
        for first, last in (
            ((count - 1) // 2, count // 2),
            (0, count - 1),
            (count // 3, count - 1),
        ):
            given = values, present, on_gpu(first), on_gpu(last)
            torch.testing.assert_close(order.order_mean(*given), order_mean_reference(*given))


@pytest.mark.parametrize(("clients", "size"), CASES)
def test_columns_are_sorted(clients, size):
    torch.manual_seed(clients)
    values = torch.randn(size, clients, device=GPU).T  # not row by row in memory
    present = torch.randperm(clients, device=GPU) >= clients // 3
    expected = torch.where(present[:, None], values, torch.inf).sort(dim=0).values
    assert torch.equal(order.ordered(values, present), expected)


def test_large_values_do_not_overflow():
    values = torch.tensor([[3e38], [3e38], [-1.0]], device=GPU)
    present = torch.ones(3, dtype=torch.bool, device=GPU)
    assert order.order_mean(values, present, on_gpu(1), on_gpu(2)).item() == pytest.approx(3e38)


@pytest.mark.skipif(GPU == "cpu", reason="needs a GPU")
def test_kernels_are_recorded():
    values = torch.randn(50, 1000, device=GPU)
    present = torch.ones(50, dtype=torch.bool, device=GPU)
    first, last = on_gpu(24), on_gpu(25)
    order.order_mean(values, present, first, last)  # compiled before it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = order.order_mean(values, present, first, last)
    values.normal_()
    graph.replay()
    torch.testing.assert_close(found, order_mean_reference(values, present, first, last))
