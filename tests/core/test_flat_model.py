import pytest
import torch
from torch import nn

from secureafl.core.flat_model import call_flat, flatten
from secureafl.tasks.models import paper_cnn


@pytest.fixture(params=["linear", "cnn"])
def model_and_inputs(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if request.param == "cnn":
            return paper_cnn(), torch.randn(3, 1, 28, 28)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(3, 4)


def test_flat_call_equals_the_model(model_and_inputs):
    model, inputs = model_and_inputs
    assert torch.equal(call_flat(model, flatten(model), inputs), model(inputs))


def test_gradient_by_the_flat_vector_equals_the_parameters_gradients(model_and_inputs):
    model, inputs = model_and_inputs
    weights = flatten(model).requires_grad_()
    flat = torch.autograd.grad(call_flat(model, weights, inputs).square().sum(), weights)[0]
    each = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
    torch.testing.assert_close(flat, torch.cat([g.reshape(-1) for g in each]))


def test_flattening_copies(model_and_inputs):
    model, inputs = model_and_inputs
    before = model(inputs)
    flatten(model).zero_()
    assert torch.equal(model(inputs), before)


def test_flat_call_leaves_the_models_parameters_alone(model_and_inputs):
    model, inputs = model_and_inputs
    before = flatten(model)
    call_flat(model, torch.zeros_like(before), inputs)
    assert torch.equal(flatten(model), before)
