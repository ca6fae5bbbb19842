"""Product of a compact BFGS matrix with a vector, for all clients at once.

Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in limited
memory methods", Mathematical Programming 63, 1994, theorem 2.3. With the steps S and the changes
Y in columns, oldest first, A = S'Y, D = diag(A), L the *strictly* lower part of A, and mu the
curvature of the newest pair,

    B v = mu v - [Y, mu S] [[-D, L'], [L, mu S'S]]^-1 [Y'v; mu S'v].

With the diagonal left in L, B would map the newest step to zero. Everything here follows from inner
products, all in float64; no vector is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_LARGEST_FACTOR = 1e10


class Products(NamedTuple):
    """Inner products of each client's pairs; the last `count` of the m places are filled."""

    steps: Float[Tensor, "n m m"]  # S'S
    cross: Float[Tensor, "n m m"]  # S'Y
    changes: Float[Tensor, "n m m"]  # Y'Y
    along_steps: Float[Tensor, "n m"]  # S'v
    along_changes: Float[Tensor, "n m"]  # Y'v
    squared: Float[Tensor, " n"]  # v'v


class Combination(NamedTuple):
    """B v = of_vector * v + of_steps . S + of_changes . Y, and its length."""

    of_vector: Float[Tensor, " n"]
    of_steps: Float[Tensor, "n m"]
    of_changes: Float[Tensor, "n m"]
    length: Float[Tensor, " n"]


def bfgs_product(inner: Products, count: Int[Tensor, " n"]) -> Combination:
    """B v as a combination; zero where a client has no pair, or its system no usable solution."""
    mu = inner.cross[:, -1, -1] / inner.steps[:, -1, -1]
    system = _middle(inner, count, mu)
    right = torch.cat([inner.along_changes, mu[:, None] * inner.along_steps], dim=1)
    solved = torch.linalg.solve_ex(system, right[:, :, None]).result[:, :, 0]
    of_changes, of_steps = (-solved).chunk(2, dim=1)
    of_steps = mu[:, None] * of_steps
    # False for NaN too. What these multiply is far below 1e28 (`core.server.LARGEST_NORM` times
    # the steps of a long run), so the float32 product stays finite.
    factors = torch.cat([mu[:, None], of_steps, of_changes], dim=1)
    sound = (factors.abs() <= _LARGEST_FACTOR).all(dim=1) & (count > 0)
    mu = torch.where(sound, mu, 0)
    of_steps = torch.where(sound[:, None], of_steps, 0)
    of_changes = torch.where(sound[:, None], of_changes, 0)
    return Combination(mu, of_steps, of_changes, _length(inner, mu, of_steps, of_changes))


def _length(inner: Products, mu: Tensor, of_steps: Tensor, of_changes: Tensor) -> Tensor:
    """Euclidean norm of the combination, from inner products alone."""
    squared = mu**2 * inner.squared
    squared = squared + torch.einsum("ni,nij,nj->n", of_steps, inner.steps, of_steps)
    squared = squared + torch.einsum("ni,nij,nj->n", of_changes, inner.changes, of_changes)
    squared = squared + 2 * torch.einsum("ni,nij,nj->n", of_steps, inner.cross, of_changes)
    squared = squared + 2 * mu * (of_steps * inner.along_steps).sum(dim=1)
    squared = squared + 2 * mu * (of_changes * inner.along_changes).sum(dim=1)
    return squared.clamp(min=0).sqrt()


def _middle(inner: Products, count: Tensor, mu: Tensor) -> Tensor:
    """The 2m x 2m middle matrix; rows and columns of empty places are those of the identity."""
    size = inner.steps.shape[1]
    lower = torch.tril(inner.cross, diagonal=-1)
    diagonal = torch.diag_embed(inner.cross.diagonal(dim1=1, dim2=2))
    upper_half = torch.cat([-diagonal, lower.transpose(1, 2)], dim=2)
    lower_half = torch.cat([lower, mu[:, None, None] * inner.steps], dim=2)
    system = torch.cat([upper_half, lower_half], dim=1)
    place = torch.arange(size, device=count.device)
    empty = (place < size - count[:, None]).repeat(1, 2)
    identity = torch.eye(2 * size, dtype=system.dtype, device=system.device)
    return torch.where(empty[:, :, None] | empty[:, None, :], identity, system)
