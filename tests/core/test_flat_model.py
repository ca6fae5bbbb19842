import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from secureafl.core.flat_model import FlatModel, call_flat, flatten, layout, named_state
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


class Tied(nn.Module):
    """One matrix in two layers, and one parameter that nothing depends on."""

    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.back.weight = self.there.weight
        self.idle = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, inputs):
        return self.back(torch.tanh(self.there(inputs)) * self.frozen)


@pytest.mark.parametrize("normed", [False, True])
def test_gradient_of_shared_idle_and_frozen_parameters_is_that_of_functional_call(
    normed,
):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(Tied(), nn.BatchNorm1d(4)) if normed else Tied()
        inputs, weights = torch.randn(3, 4), torch.randn(flatten(model).numel())
    found, moved = FlatModel(model).gradient(weights, inputs, lambda out: out.square().sum())
    vector, shapes = weights.clone().requires_grad_(), layout(model).items()
    pieces = vector.split([math.prod(shape) for _, shape in shapes])
    named = {n: p.view(shape) for (n, shape), p in zip(shapes, pieces, strict=True)}
    if normed:  # layers write to their statistics
        named |= {n: named[n].detach().clone() for n in ("1.running_mean", "1.running_var")}
    loss = functional_call(model.train(), named, inputs).square().sum()
    assert torch.equal(found, torch.autograd.grad(loss, vector)[0])
    after = torch.cat([named["1.running_mean"], named["1.running_var"]]) if normed else weights[:0]
    assert torch.equal(moved, weights[-8:] - after if normed else after)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, inputs):
        inner = checkpoint(lambda x: torch.tanh(self.first(x)), inputs, use_reentrant=False)
        return self.last(inner)


def test_layers_that_are_carried_out_again_on_the_way_back_have_the_same_weights_there():
    model, inputs = Checkpointed(), torch.randn(3, 4)
    weights = torch.randn(flatten(model).numel())
    found, _ = FlatModel(model).gradient(weights, inputs, lambda out: out.square().sum())
    nn.utils.vector_to_parameters(weights, model.parameters())
    each = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, torch.cat([part.reshape(-1) for part in each]))


def test_frozen_parameters_are_no_part_of_the_vector_and_stay_what_they_are():
    model, inputs = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), torch.randn(3, 4)
    model[0].weight.requires_grad_(False)
    assert [*layout(model)] == ["0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert flatten(model).numel() == 25
    torch.testing.assert_close(call_flat(model, flatten(model), inputs), model.eval()(inputs))
    named = named_state(model, torch.ones(25))
    assert torch.equal(named["0.weight"], model[0].weight)
    assert torch.equal(named["0.bias"], torch.ones(5))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # not every CPU has instructions for it
def test_mixed_precision_is_close_and_gives_float32():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        inputs, weights = torch.randn(6, 4), flatten(model)
    dtypes = []

    def loss(outputs):
        dtypes.append(outputs.dtype)
        return outputs.square().sum()

    plain, moved = FlatModel(model).gradient(weights, inputs, loss)
    mixed, also_moved = FlatModel(model, mixed=True).gradient(weights, inputs, loss)
    assert {mixed.dtype, also_moved.dtype, *dtypes} == {torch.float32}
    assert 0 < float((mixed - plain).norm()) < 0.02 * float(plain.norm())
    assert 0 < float((also_moved - moved).norm()) < 0.02 * float(moved.norm())
    outputs = FlatModel(model, mixed=True).outputs(weights, inputs)
    assert outputs.dtype == torch.float32
    assert not torch.equal(outputs, FlatModel(model).outputs(weights, inputs))
