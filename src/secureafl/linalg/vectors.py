"""Vectors and rows of matrices; on a GPU without a look at a value on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def row(matrix: Tensor, index: Int[Tensor, ""]) -> Tensor:
    """Copy of `matrix[index]` that does not read `index` back to the host.

    >>> secureafl.row(torch.eye(3), torch.tensor(1))
    tensor([0., 1., 0.])
    """
    return matrix.index_select(0, index.view(1)).squeeze(0)


def set_row(matrix: Tensor, index: Int[Tensor, ""], value: Tensor, keep: Bool[Tensor, ""]) -> None:
    """In plain torch what `kernels.rows.set_row` does."""
    if matrix.device.type == "cpu":  # reading a number costs nothing there
        if keep:
            matrix.select(0, int(index)).copy_(value)
        return
    matrix.index_copy_(0, index.view(1), torch.where(keep, value, row(matrix, index))[None])


def norm(vector: Tensor) -> Float[Tensor, " ..."]:
    """Euclidean norm over the last axis; exact enough for a bound, infinite if it overflows.

    >>> secureafl.norm(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    return torch.linalg.vector_norm(vector, dim=-1)


def exact_norm(vector: Tensor) -> Float[Tensor, " ..."]:
    """Euclidean norm over the last axis, in float64: squares of large float32 overflow.

    >>> secureafl.exact_norm(torch.tensor([3e30, 4e30]))
    tensor(5.0000e+30, dtype=torch.float64)
    """
    return torch.linalg.vector_norm(vector, dim=-1, dtype=torch.float64)


def scaled(vector: Tensor, scale: Float[Tensor, ""]) -> Tensor:
    """The vector times a number; on a CPU not a copy if that is 1."""
    # Reading a number costs nothing there, a pass over memory does.
    if scale.device.type == "cpu" and scale == 1:
        return vector
    return vector * scale  # a single number does not change the dtype


def choose(flag: Bool[Tensor, ""], one: Tensor, other: Tensor) -> Tensor:
    """`torch.where` of a single flag; on a CPU not a copy.

    >>> secureafl.choose(torch.tensor(False), torch.zeros(1), torch.ones(1))
    tensor([1.])
    """
    if flag.is_cpu:
        return one if flag else other
    return torch.where(flag, one, other)


def zero_unless(flag: Bool[Tensor, ""], vector: Tensor) -> Tensor:
    """The vector, or zeros where the flag does not hold; on a CPU not a copy."""
    if flag.device.type == "cpu":
        return vector if flag else torch.zeros_like(vector)
    return torch.where(flag, vector, 0)


def exactly_scaled(vector: Float[Tensor, " d"], factor: Float[Tensor, ""]) -> Float[Tensor, " d"]:
    """`factor * vector`, multiplied in float64: the factor alone may not fit the vector's dtype.

    >>> secureafl.exactly_scaled(torch.tensor([1e-30]), torch.tensor(1e40, dtype=torch.float64))
    tensor([1.0000e+10])
    """
    return (vector.double() * factor).to(vector.dtype)


def clipped(vector: Float[Tensor, " d"], radius: Float[Tensor, ""]) -> Float[Tensor, " d"]:
    """The vector, shortened to norm `radius` if it is longer.

    >>> secureafl.clipped(torch.tensor([3.0, 4.0]), radius=torch.tensor(1.0))
    tensor([0.6000, 0.8000])
    """
    length = exact_norm(vector)
    return exactly_scaled(vector, torch.where(length > radius, radius / length, 1.0))


def cosine(one: Float[Tensor, " d"], other: Float[Tensor, " d"]) -> Float[Tensor, ""]:
    """Cosine of the angle between two vectors, in float64; 0 if one of them is zero.

    >>> secureafl.cosine(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    tensor(0., dtype=torch.float64)
    """
    lengths = exact_norm(one) * exact_norm(other)
    return torch.where(lengths > 0, one.double() @ other.double() / lengths, 0.0)


def computed_if(
    wanted: Bool[Tensor, ""], compute: Callable[[], Tensor], otherwise: Tensor
) -> Tensor:
    """`compute()` where `wanted` holds, else `otherwise`.

    A step recorded on a GPU cannot branch, so there both are made and one is chosen; on the CPU
    nothing is computed in vain.

    >>> secureafl.computed_if(torch.tensor(True), lambda: torch.ones(1), otherwise=torch.zeros(1))
    tensor([1.])
    """
    if wanted.device.type == "cpu":
        return compute() if wanted else otherwise
    return torch.where(wanted, compute(), otherwise)
