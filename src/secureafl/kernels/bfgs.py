"""Product of a compact BFGS matrix with a vector, for all clients at once.

Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in limited
memory methods", Mathematical Programming 63, 1994, theorem 2.3. With the steps S and the changes
Y in columns, oldest first, A = S'Y, D = diag(A), L the *strictly* lower part of A, and mu the
curvature of the newest pair,

    B v = mu v - [Y, mu S] [[-D, L'], [L, mu S'S]]^-1 [Y'v; mu S'v].

With the diagonal left in L, B would map the newest step to zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_LARGEST_FACTOR = 1e10


def bfgs_product(
    steps: Float[Tensor, "n m d"],
    changes: Float[Tensor, "n m d"],
    step_gram: Float[Tensor, "n m m"],
    cross_gram: Float[Tensor, "n m m"],
    count: Int[Tensor, " n"],
    vector: Float[Tensor, "n d"],
) -> Float[Tensor, "n d"]:
    """Row k is B_k v_k; zero where client k has no pair, or its small system no usable solution.

    Args:
        steps: s, oldest first; the last `count` of the m places are filled, the others zero.
        changes: y, likewise.
        step_gram: S'S, float64.
        cross_gram: S'Y, float64.
        count: pairs of each client.
        vector: v of each client.
    """
    along_changes = torch.bmm(changes, vector[:, :, None])[:, :, 0].double()  # Y'v
    along_steps = torch.bmm(steps, vector[:, :, None])[:, :, 0].double()  # S'v
    curvature = (cross_gram[:, -1, -1] / step_gram[:, -1, -1])[:, None]  # mu
    system = _middle(step_gram, cross_gram, count, curvature)
    right = torch.cat([along_changes, curvature * along_steps], dim=1)
    solved = torch.linalg.solve_ex(system, right[:, :, None]).result[:, :, 0]
    weight_changes, weight_steps = solved.chunk(2, dim=1)
    weight_steps = curvature * weight_steps
    # False for NaN too. What these multiply is far below 1e28 (`core.server.LARGEST_NORM`
    # times the steps of a long run), so the float32 product stays finite.
    factors = torch.cat([curvature, weight_changes, weight_steps], dim=1)
    sound = (factors.abs() <= _LARGEST_FACTOR).all(dim=1, keepdim=True) & (count > 0)[:, None]
    scale, weight_changes, weight_steps = (
        torch.where(sound, x, 0).to(vector.dtype) for x in (curvature, weight_changes, weight_steps)
    )
    product = scale * vector
    product -= torch.bmm(weight_changes[:, None], changes)[:, 0]
    product -= torch.bmm(weight_steps[:, None], steps)[:, 0]
    return product


def _middle(step_gram: Tensor, cross_gram: Tensor, count: Tensor, curvature: Tensor) -> Tensor:
    """The 2m x 2m middle matrix; rows and columns of empty places are those of the identity."""
    size = step_gram.shape[1]
    lower = torch.tril(cross_gram, diagonal=-1)
    diagonal = torch.diag_embed(cross_gram.diagonal(dim1=1, dim2=2))
    upper_half = torch.cat([-diagonal, lower.transpose(1, 2)], dim=2)
    lower_half = torch.cat([lower, curvature[:, :, None] * step_gram], dim=2)
    system = torch.cat([upper_half, lower_half], dim=1)
    place = torch.arange(size, device=count.device)
    empty = (place < size - count[:, None]).repeat(1, 2)
    identity = torch.eye(2 * size, dtype=system.dtype, device=system.device)
    return torch.where(empty[:, :, None] | empty[:, None, :], identity, system)
