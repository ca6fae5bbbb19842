import pytest
import torch
from torch import nn

from secureafl.core.vectors import call_flat, flatten, norm, row, set_row
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


def test_row_is_a_copy():
    matrix = torch.arange(6.0).view(3, 2)
    row(matrix, torch.tensor(1)).zero_()
    assert matrix[1].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("keep", [True, False])
def test_row_is_written_only_where_it_is_to_be_kept(keep):
    matrix = torch.zeros(3, 2)
    set_row(matrix, torch.tensor(2), torch.tensor([5.0, torch.nan]), torch.tensor(keep))
    assert not matrix[:2].any()
    assert float(matrix[2, 0]) == (5.0 if keep else 0.0)
    assert bool(matrix.isnan().any()) == keep  # what is not kept leaves no NaN behind


def test_norm_of_large_float32_does_not_overflow():
    assert float(norm(torch.full((4,), 1e30))) == pytest.approx(2e30)
    assert norm(torch.ones(4)).dtype == torch.float64


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_norm_shows_every_value_that_is_not_finite(spoilt):
    vector = torch.ones(1000)
    vector[517] = spoilt
    assert not torch.isfinite(norm(vector))
