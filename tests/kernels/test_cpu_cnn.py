"""The CNN's gradient and outputs compiled for a CPU, against autograd's in float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from secureafl.core.flat_model import FlatModel, flatten
from secureafl.tasks.models.cnn import paper_cnn

pytest.importorskip("llvmlite")
from secureafl.kernels import cpu_cnn, cpu_cnn_code
from secureafl.kernels.cnn_sizes import LAYER_1, LAYER_2
from secureafl.kernels.cpu_cnn import cnn_gradient, cnn_outputs


def case(size="140k", images=32):
    """Convolutions without rounding, so which of four places is the largest leaves no doubt."""
    torch.manual_seed(images)
    model = paper_cnn(size)
    weights, labels = flatten(model), torch.randint(10, (images,))
    convolutions = weights[: LAYER_1 + LAYER_2]
    convolutions.copy_(torch.randint(-2, 3, convolutions.shape) / 8)
    return model, weights, torch.randint(-3, 4, (images, 1, 28, 28)) / 2, of_labels(labels)


def of_labels(labels):
    return lambda outputs: cross_entropy(outputs, labels)


def exact(model, weights, inputs, loss):
    double = FlatModel(model.double())
    return double.gradient(weights.double(), inputs.double(), loss)[0]


def difference(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("size", ["140k", "500k", "1m"])
@pytest.mark.parametrize("images", [1, 3, 8, 9, 32, 57])
def test_the_gradient_is_autograds(size, images):
    model, *given = case(size, images)
    assert difference(cnn_gradient(*given), exact(model, *given)) < 1e-5


def test_any_loss_will_do():
    model, weights, inputs, _ = case(images=9)
    given = (weights, inputs, lambda outputs: (outputs[:, 3] ** 2).sum())
    assert difference(cnn_gradient(*given), exact(model, *given)) < 1e-5


def test_of_equal_places_the_first_one_gets_the_gradient():
    model, weights, inputs, loss = case()
    given = (weights, torch.ones_like(inputs), loss)
    assert difference(cnn_gradient(*given), exact(model, *given)) < 1e-5


@pytest.mark.parametrize("images", [1, 99, 100, 101, 250])
def test_outputs_are_the_models(images):
    model, weights, inputs, _ = case(images=images)
    expected = FlatModel(model.double()).outputs(weights.double(), inputs.double())
    torch.testing.assert_close(cnn_outputs(weights, inputs).double(), expected, rtol=0, atol=1e-4)


def test_images_may_lie_anywhere_in_memory():
    _, weights, inputs, loss = case()
    turned = inputs.transpose(2, 3).contiguous().transpose(2, 3)
    wide = torch.zeros(2, weights.numel())
    wide[1] = weights
    expected = cnn_gradient(weights, inputs, loss)
    assert torch.equal(cnn_gradient(weights, turned, loss), expected)
    assert torch.equal(cnn_gradient(wide[1], inputs, loss), expected)
    assert torch.equal(cnn_gradient(wide.T.contiguous()[:, 1], inputs, loss), expected)
    assert torch.equal(cnn_outputs(weights, turned), cnn_outputs(weights, inputs))


def test_the_same_bits_every_time():
    _, *given = case()
    first = cnn_gradient(*given)
    assert all(torch.equal(first, cnn_gradient(*given)) for _ in range(20))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("images", [1, 9, 50])
def test_convolutions_have_the_same_bits_with_any_number_of_threads(images, threads):
    _, weights, inputs, _ = case(images=images)
    layers = cpu_cnn._Layers.of(weights)
    made = []
    for number in (1, 2, 3, 8):
        threads(number)
        convolved, gradient = cpu_cnn._convolve(layers, inputs), torch.zeros_like(weights)
        found = cpu_cnn._Layers.of(gradient)
        cpu_cnn._convolve_back(layers, inputs, convolved, convolved.features, found)
        made.append((convolved.features, gradient))
    for features, gradient in made:
        assert torch.equal(features, made[0][0])
        assert torch.equal(gradient, made[0][1])


REGISTERS = {"sse": (4, False), "neon": (4, True), "avx": (8, False), "avx512": (16, True)}


def test_the_same_bits_with_registers_of_any_size(monkeypatch):
    _, *given = case()
    expected = cnn_gradient(*given)
    for kind in REGISTERS.values():
        registers = cpu_cnn_code._Registers(*kind)
        monkeypatch.setattr(cpu_cnn_code, "_registers", lambda kind=registers: kind)
        for one in ("forward_pass", "backward_pass"):
            monkeypatch.setattr(cpu_cnn, one, getattr(cpu_cnn_code, one).__wrapped__)
        assert torch.equal(cnn_gradient(*given), expected)


@pytest.mark.parametrize("place", [0, 290, 500, 13_830, 20_000, -1])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_a_number_is_not_hidden(place, value):
    _, weights, inputs, loss = case(images=4)
    weights[place] = value
    assert not torch.isfinite(cnn_gradient(weights, inputs, loss).norm())


@pytest.mark.parametrize("place", [(0, 0), (25, 0), (0, 25), (25, 25)])
def test_nor_is_one_in_a_single_place_of_four(place):
    _, weights, inputs, loss = case(images=4)
    inputs[(1, 0, *place)] = torch.nan
    assert not torch.isfinite(cnn_gradient(weights, inputs, loss).norm())
    finite = torch.isfinite(cnn_outputs(weights, inputs)).all(dim=1)
    assert finite.tolist() == [True, False, True, True]


def test_nothing_that_was_given_changes():
    _, weights, inputs, loss = case()
    before = weights.clone(), inputs.clone()
    cnn_gradient(weights, inputs, loss)
    cnn_outputs(weights, inputs)
    assert torch.equal(weights, before[0])
    assert torch.equal(inputs, before[1])
    assert not weights.requires_grad
