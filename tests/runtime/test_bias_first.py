"""The product with the bias as its first term: the bits of `torch.addmm`, or nothing."""

import platform

import numpy as np
import pytest
import torch

from secureafl.runtime.bias_first import _product, bias_first

SHAPES = [(32, 64, 64), (32, 64, 10), (128, 200, 32), (8, 64, 64), (32, 5, 5), (32, 784, 32)]


def operands(samples, inputs, outputs, scale=1.0):
    """Bias, inputs and weights of a linear layer, the last transposed as there."""
    drawn = torch.randn(outputs), torch.randn(samples, inputs), torch.randn(outputs, inputs)
    bias, given, weights = (scale * tensor for tensor in drawn)
    return bias, given, weights.t()


def one_term_after_the_other(bias, inputs, weights):
    """From the bias on, each term rounded once; a product of two float32 is exact in float64."""
    total = np.broadcast_to(bias.numpy(), (len(inputs), len(bias))).astype(np.float32)
    for column, row in zip(inputs.numpy().T, weights.numpy(), strict=True):
        terms = column[:, None].astype(np.float64) * row
        total = (total + terms).astype(np.float32)
    return torch.from_numpy(total)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e15])
def test_product_has_the_bits_of_addmm_or_there_is_none(shape, scale):
    torch.manual_seed(0)
    product = bias_first(*operands(*shape))
    for _ in range(20):
        given = operands(*shape, scale)
        assert product is None or torch.equal(product(*given), torch.addmm(*given))


@pytest.mark.skipif(platform.machine() != "aarch64", reason="elsewhere torch does not use oneDNN")
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_there_is_one_where_onednn_takes_longer(shape):
    assert bias_first(*operands(*shape)) is not None


@pytest.mark.skipif(platform.machine() != "aarch64", reason="BLAS sums in another order elsewhere")
def test_terms_are_added_one_by_one_to_the_bias():
    torch.manual_seed(1)
    given = bias, inputs, weights = operands(32, 64, 10)
    found = _product(inputs, weights)(*given)
    assert torch.equal(found, one_term_after_the_other(*given))
    assert not torch.equal(found, inputs @ weights + bias)


def test_result_can_be_given_its_place():
    given, out = operands(32, 64, 10), torch.empty(32, 10)
    product = _product(*given[1:])
    product(*given, out=out)
    assert torch.equal(out, product(*given))


def test_there_is_none_for_other_operands():
    bias, inputs, weights = operands(32, 64, 10)
    assert bias_first(bias.expand(32, 10), inputs, weights) is None
    assert bias_first(bias.double(), inputs.double(), weights.double()) is None


def test_trying_it_draws_no_number_of_anybody_else():
    given, before = operands(32, 64, 10), torch.get_rng_state()
    bias_first(*given)
    assert torch.equal(torch.get_rng_state(), before)
