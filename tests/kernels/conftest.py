import pytest


@pytest.fixture(scope="module")
def gpu():
    from secureafl.kernels import gpu

    return gpu
