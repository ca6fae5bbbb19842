"""Inner products with the last uploads, where these are not stored in tiles."""

from importlib import import_module

import pytest
import torch

from secureafl.core.types import Arrival
from secureafl.core.uploads import Uploads
from secureafl.kernels import reference


@pytest.fixture(params=["cpu", "gpu"])
def fast(request):
    """A version of the operations, on its device."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if request.param == "cpu":
        pytest.importorskip("llvmlite")
    with torch.device("cuda" if request.param == "gpu" else "cpu"):
        yield import_module(f"secureafl.kernels.{request.param}")


def drawn(size, dtype, client):
    torch.manual_seed(size)
    rows = torch.randn(2, 5, size, dtype=dtype)
    gradient, base = torch.randn(2, size, dtype=dtype)
    arrival = Arrival(torch.tensor(client), torch.tensor(0), gradient, base)
    return Uploads(*rows, torch.arange(5) % 2 == 0), arrival


@pytest.mark.parametrize("size", [1, 31, 5000, 139_960])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secant_products_are_the_plain_ones(fast, size, dtype):
    for client in range(5):
        given = drawn(size, dtype, client)
        for one, other in zip(
            fast.secant_products(*given), reference.secant_products(*given), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-4)


def test_plain_ones_are_of_the_changes_since_the_last_upload():
    uploads, arrival = drawn(31, torch.float64, client=3)
    step, change = arrival.base - uploads.base[3], arrival.gradient - uploads.gradient[3]
    found = reference.secant_products(uploads, arrival)
    expected = [step @ step, step @ change, change @ change, arrival.gradient @ arrival.gradient]
    torch.testing.assert_close(torch.stack(found[1:]), torch.stack(expected))
    assert not found.known
