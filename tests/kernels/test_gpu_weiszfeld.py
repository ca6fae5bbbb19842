"""Distances from the geometric median on a GPU against those in plain torch."""

import pytest
import torch
from emulated_cuda import GPU, costly

from secureafl.kernels.weiszfeld import MOST, distances_from_median
from secureafl.linalg import weiszfeld

pytestmark = pytest.mark.usefixtures("gpu")


COSTLY = [costly(vectors) for vectors in (2, 31, 32, 50, 64, 100)]


def case(vectors, size=300):
    """Vectors of which some are far, two are equal, and some have no weight."""
    torch.manual_seed(vectors)
    rows = torch.randn(vectors, size, dtype=torch.float64, device=GPU) + 0.5
    rows[: vectors // 4] *= 40
    rows[-1] = rows[0]
    weights = torch.randint(1, 9, (vectors,), device=GPU).double()
    weights[1 : 1 + vectors // 5] = 0
    weights[-1] = weights[0]
    return rows @ rows.T, weights


@pytest.mark.parametrize("vectors", [1, 3, 33, MOST, MOST + 1, *COSTLY])
def test_distances_are_the_plain_ones(vectors):
    products, weights = case(vectors)
    found = distances_from_median(products, weights)
    expected = weiszfeld.distances_from_median(products, weights)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-6)
    assert found[0] == found[-1], "equal vectors are equally far"


def test_nobody_with_weight_is_at_no_distance():
    products, _ = case(5)
    nobody = torch.zeros(5, dtype=torch.float64, device=GPU)
    expected = weiszfeld.distances_from_median(products, nobody)
    assert torch.equal(distances_from_median(products, nobody), expected)


@pytest.mark.skipif(GPU == "cpu", reason="needs a GPU")
def test_same_bits_when_recorded():
    products, weights = case(50)
    expected = distances_from_median(products, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = distances_from_median(products, weights)
    graph.replay()
    assert torch.equal(found, expected)
