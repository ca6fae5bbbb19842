"""The CNN's gradient written out for a GPU against autograd's."""

import pytest
import torch
from emulated_cuda import GPU, costly
from torch import nn
from torch.nn.functional import cross_entropy, unfold
from torch.nn.utils import vector_to_parameters

from secureafl.core.flat_model import FlatModel, flatten
from secureafl.kernels import gpu_cnn
from secureafl.kernels.gpu_cnn import cnn_gradient, cnn_outputs
from secureafl.tasks.models.cnn import paper_cnn

pytestmark = pytest.mark.usefixtures("gpu")


def case(size, images, spread=1.0):
    torch.manual_seed(images)
    model = paper_cnn(size).to(GPU)
    weights = spread * flatten(model)
    inputs = torch.randn(2 * images + 8, 1, 28, 28, device=GPU)
    inputs = inputs[clear(paper_cnn(size).to(GPU), weights, inputs)][:images]
    assert len(inputs) == images
    return model, weights, inputs, torch.randint(10, (images,), device=GPU)


def clear(model, weights, inputs):
    """For each image whether no ReLU and no maximum depends on how numbers are rounded."""
    vector_to_parameters(weights, model.parameters())
    values, found = inputs.double(), torch.ones(len(inputs), dtype=torch.bool, device=GPU)
    *layers, _ = model.double()
    for layer in layers:
        values = layer(values).detach()
        if isinstance(layer, nn.Conv2d):
            windows = unfold(values.flatten(0, 1)[:, None], 2, stride=2).transpose(1, 2)
            first, second = windows.topk(2).values.unbind(-1)
            margins = torch.where(first > 0, torch.minimum(first, first - second), -first)
        elif isinstance(layer, nn.Linear):
            margins = values.abs()
        else:
            continue
        found &= margins.reshape(len(inputs), -1).amin(1) > 3e-6 * values.abs().mean()
    return found


def by_autograd(model, weights, inputs, labels):
    """In float64."""
    weights = weights.double().requires_grad_()
    outputs, _ = FlatModel(model).train(weights, inputs.double())
    return torch.autograd.grad(cross_entropy(outputs, labels), weights)[0]


@pytest.mark.parametrize("size", ["140k", costly("500k"), costly("1m")])
@pytest.mark.parametrize("images", [3, 33, *map(costly, [1, 8, 32, 100, 1000])])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_the_gradient_is_autograds(size, images, spread):
    given = case(size, images, spread)
    expected = by_autograd(*given)
    found = cnn_gradient(*given[1:])
    assert float((found - expected).norm()) < 1e-5 * float(expected.norm())


def test_the_same_bits_every_time():
    _, *given = case("140k", 32)
    first = cnn_gradient(*given)
    assert all(torch.equal(first, cnn_gradient(*given)) for _ in range(3 if GPU == "cpu" else 20))


@pytest.mark.parametrize("place", [0, 290, 500, 13_830, 20_000, -1])
def test_what_is_not_a_number_is_not_hidden(place):
    _, weights, inputs, labels = case("140k", 4)
    weights[place] = torch.nan
    assert not torch.isfinite(cnn_gradient(weights, inputs, labels).norm())


@pytest.mark.parametrize("size", ["140k", costly("500k"), costly("1m")])
@pytest.mark.parametrize("images", [1, 7] if GPU == "cpu" else [1, 7, 2501])
def test_the_outputs_are_the_layers(size, images, monkeypatch):
    monkeypatch.setattr(gpu_cnn, "_AT_A_TIME", 3 if images < 100 else gpu_cnn._AT_A_TIME)
    model, weights, inputs, _ = case(size, images)
    expected = FlatModel(model.double()).outputs(weights.double(), inputs.double())
    found = cnn_outputs(weights, inputs)
    assert found.shape == (images, 10)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    not_as_it_lies = inputs.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    assert torch.equal(cnn_outputs(weights, not_as_it_lies), found)


def test_outputs_of_what_is_not_a_number_are_none():
    _, weights, inputs, _ = case("140k", 4)
    inputs[2, 0, 5, 5] = torch.nan
    found = cnn_outputs(weights, inputs)
    assert found[2].isnan().all()
    assert found[[0, 1, 3]].isfinite().all()
