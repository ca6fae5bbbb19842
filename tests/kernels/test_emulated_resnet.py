"""The CUDA kernels of ResNet-20's gradient, compiled for a CPU, against autograd."""

import itertools

import pytest
import torch
from emulated_cuda import ABLE, GPU, costly, emulate
from resnet_cases import case_of, error, evaluation_of, loss_for

from secureafl.core.flat_model import FlatModel, count_statistics
from secureafl.kernels import gpu_resnet
from secureafl.tasks.models.resnet_gradient import resnet_gradient, resnet_outputs

pytestmark = pytest.mark.skipif(GPU == "cuda" or not ABLE, reason="needs Linux and g++, no GPU")
SMALL, ODD = (3, 9, 6), (5, 18, 17)
WIDE = (2, 5, 199)  # a tile has not all columns


@pytest.fixture
def few_blocks(monkeypatch):
    """Memory that is not written is not a number."""
    # So few that blocks have several tiles, and images.
    monkeypatch.setattr(gpu_resnet, "_BLOCKS", {16: 3, 32: 2, 64: 2})
    monkeypatch.setattr(gpu_resnet, "_BLOCKS_BACK", {16: 3, 32: 2, 64: 2})
    for name in ("_IMAGE_BLOCKS", "_POOL_BLOCKS", "_PACK_BLOCKS"):
        monkeypatch.setattr(gpu_resnet, name, 2)

    torch.use_deterministic_algorithms(True)  # fills memory before it is written
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def gradient(monkeypatch, few_blocks):
    """`resnet_gradient` on a CPU."""

    def found(model, weights, inputs, labels, mixed, exact=False):
        emulate(monkeypatch, exact)
        return resnet_gradient(model, weights, inputs, loss_for(labels), mixed)

    return found


@pytest.fixture
def outputs(monkeypatch, few_blocks):
    """`resnet_outputs` on a CPU."""

    def found(model, weights, inputs, exact=False):
        emulate(monkeypatch, exact)
        return resnet_outputs(model, weights, inputs)

    return found


def by_autograd(model, weights, inputs, labels, mixed=False):
    return FlatModel(model, mixed).gradient(weights, inputs, loss_for(labels))


@pytest.mark.parametrize("sizes", [SMALL, costly(ODD), costly(WIDE)])
def test_with_exact_products_the_gradient_is_autograds(gradient, sizes):
    model, weights, inputs, labels = case_of(*sizes, 10, device="cpu")
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    found = gradient(model, weights, inputs, labels, mixed=False, exact=True)
    assert max(error(found, expected)) < 1e-5
    assert not found[0][-count_statistics(model) :].any()


@pytest.mark.parametrize("sizes", [costly(SMALL), costly(ODD), WIDE])
def test_in_bfloat16_it_is_as_close_as_autograd(gradient, sizes):
    model, weights, inputs, labels = case_of(*sizes, 10, device="cpu")
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    usual = error(by_autograd(model, weights, inputs, labels, mixed=True), expected)
    found = gradient(model, weights, inputs, labels, mixed=True)
    for ours, autograds in zip(error(found, expected), usual, strict=True):
        assert ours < 2 * autograds + 2e-3
    # In another order of blocks and warps.
    assert torch.equal(torch.cat(found), torch.cat(gradient(model, weights, inputs, labels, True)))


@pytest.mark.parametrize("sizes", [SMALL, costly(ODD), costly(WIDE)])
def test_with_exact_products_the_outputs_are_those_of_the_layers(outputs, sizes):
    model, weights, inputs = evaluation_of(*sizes, 10, device="cpu")
    expected = FlatModel(model).outputs(weights.double(), inputs.double())
    found = outputs(model, weights, inputs, exact=True)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [costly(SMALL)])
def test_outputs_in_tf32_are_close_and_those_of_one_image_are_its_own(outputs, sizes):
    model, weights, inputs = evaluation_of(*sizes, 10, device="cpu")
    expected = FlatModel(model).outputs(weights.double(), inputs.double())
    found = outputs(model, weights, inputs)
    assert (found - expected).norm() < 0.01 * expected.norm()
    # The last layer is torch's, which adds up in another order for one image.
    torch.testing.assert_close(
        outputs(model, weights, inputs[1:2]), found[1:2], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("place", [0, 440, 269_050, -1377, -1])
def test_what_is_not_a_number_is_not_hidden_in_outputs(outputs, place):
    model, weights, inputs = evaluation_of(*SMALL, 10, device="cpu")
    weights[place] = torch.nan
    assert outputs(model, weights, inputs, exact=True).isnan().any(dim=1).all()


@pytest.mark.parametrize("place", [0, 440, 460, 5_000, 100_000, 200_000, 269_050, -1377])
def test_what_is_not_a_number_in_weights_is_not_hidden(gradient, place):
    model, weights, inputs, labels = case_of(*SMALL, 10, device="cpu")
    weights[place] = torch.nan
    found, moved = gradient(model, weights, inputs, labels, mixed=True)
    assert found[[0, -1 - moved.numel()]].isnan().all()  # the way back ends at the first


def test_what_is_not_a_number_in_statistics_and_images_is_not_hidden(gradient):
    model, weights, inputs, labels = case_of(*SMALL, 10, device="cpu")
    weights[-1] = torch.nan
    found, moved = gradient(model, weights, inputs, labels, mixed=True)
    assert found.isfinite().all()
    assert moved[-1].isnan()
    assert moved[:-1].isfinite().all()
    inputs[1, 1, 5, 5] = torch.inf
    found, moved = gradient(model, weights, inputs, labels, mixed=True)
    assert found[[0, -1 - moved.numel()]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels", [(16, 16), (16, 32), (32, 32), (32, 64), (64, 64)])
def test_tiles_of_every_size_fit_into_shared_memory(dtype, channels):
    for height, width, images in itertools.product(
        [1, 2, 7, 33, 64, 500], [1, 5, 18, 601], [1, 64]
    ):
        sizes = gpu_resnet.Sizes(*channels, images, height, width, dtype)
        for cut, room, step, seen in (
            (gpu_resnet.tiles_there, gpu_resnet._THERE, sizes.stride, 3),
            (gpu_resnet.tiles_back, gpu_resnet._BACK, 1, 4 - sizes.stride),
        ):
            lines, columns, group, _ = cut(sizes)
            warps, products, rows = room[dtype][channels]
            assert group * lines * columns <= 16 * warps * products
            assert group * (step * (lines - 1) + seen) * (step * (columns - 1) + seen) <= rows
