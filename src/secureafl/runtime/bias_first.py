"""A linear layer's product without oneDNN, bit for bit: the bias is the first number summed.

On aarch64 torch hands the product of a linear layer to oneDNN, which takes longer to get ready than
to multiply a small matrix. It sums up from the bias: ((b + x1 w1) + x2 w2) + ..., each term rounded
once. A plain matrix product goes to a BLAS library, which sums in the same order but from 0, and
torch adds the bias last. So here the bias is the first row of the weights, and the number it is
multiplied by, 1, the first of each sample.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[..., Tensor]  # as `torch.addmm`


def bias_first(bias: Tensor, inputs: Tensor, weights: Tensor) -> Product | None:
    """A function that does what `torch.addmm` does with operands of these shapes and strides.

    None if its bits would differ, as where torch does not use oneDNN. In what order numbers are
    summed does not depend on the numbers: this is tried with random ones.
    """
    given = bias, inputs, weights
    tried = [torch.empty_like(tensor) for tensor in given]
    strides = all(one.stride() == other.stride() for one, other in zip(tried, given, strict=True))
    if bias.ndim != 1 or bias.dtype != torch.float32 or not strides:
        return None
    product, generator = _product(inputs, weights), torch.Generator().manual_seed(0)
    for tensor in tried:
        tensor.normal_(generator=generator)
    return product if torch.equal(product(*tried), torch.addmm(*tried)) else None


def _product(inputs: Tensor, weights: Tensor) -> Product:
    """The function, with room for operands of these shapes."""
    (samples, count), outputs = inputs.shape, weights.shape[1]
    wide, tall = inputs.new_ones(samples, count + 1), weights.new_empty(count + 1, outputs)
    samples_here, bias_here, weights_here = wide[:, 1:], tall[0], tall[1:]

    def product(bias: Tensor, inputs: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
        samples_here.copy_(inputs)
        bias_here.copy_(bias)
        weights_here.copy_(weights)
        return torch.mm(wide, tall, out=out)

    return product
