import pytest
from emulated_cuda import ABLE, GPU, emulate


@pytest.fixture
def gpu(monkeypatch):
    """The GPU's version of the hot operations; without a GPU its kernels run on the CPU."""
    if GPU == "cpu":
        if not ABLE:
            pytest.skip("needs a GPU, or Linux and g++")
        emulate(monkeypatch)
    from secureafl.kernels import gpu

    return gpu
