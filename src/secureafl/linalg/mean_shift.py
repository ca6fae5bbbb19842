"""Mean shift with a flat kernel, for a few points of few dimensions.

A copy of every point moves to the mean of the points within the bandwidth until it stays; where
the copies end are the modes. Modes within the bandwidth of a stronger one are dropped, and each
point belongs to the nearest mode, unless that is farther away than the bandwidth.

Comaniciu, Meer, "Mean shift: a robust approach toward feature space analysis", IEEE Transactions
on Pattern Analysis and Machine Intelligence 24, 2002.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.linalg.rows import smallest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_STEPS = 30  # hundreds of points stay where they are after fewer
_EDGE = 1 + 1e-9  # what lies on the edge of a ball is inside, whatever the rounding


def largest_cluster(
    points: Float[Tensor, "n m"], present: Bool[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """Members of the largest cluster; everybody, if half of the points coincide with others.

    The bandwidth is the mean distance to the nearest half of the points, the point itself
    included.
    """
    radius = _bandwidth(points, present) * _EDGE
    modes, strength = _modes(points, present, radius)
    order = _strongest_first(modes, strength)
    modes, heads = modes[order], _heads(modes[order], strength[order] > 0, radius)
    away = torch.where(heads, _distances(points, modes), torch.inf)
    label = torch.where((away.amin(dim=1) <= radius) & present, away.argmin(dim=1), -1)
    place = torch.arange(len(points), device=points.device)
    sizes = (label[:, None] == place).sum(dim=0)
    return torch.where(radius > 0, label == sizes.argmax(), present)


def _bandwidth(points: Tensor, present: Tensor) -> Float[Tensor, ""]:
    count = present.sum()
    away = torch.where(present, _distances(points, points), torch.inf)
    near = smallest(away, (count // 2).clamp(min=1))
    reach = torch.where(near, away, 0).amax(dim=1)
    return torch.where(present, reach, 0).sum() / count.clamp(min=1)


def _modes(points: Tensor, present: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The mode each point moves to, and the number of points near it (0 for an absent point)."""
    centres = points
    for _ in range(_STEPS):
        near = (_distances(centres, points) <= radius) & present
        number = near.sum(dim=1)
        means = near.to(points.dtype) @ points / number.clamp(min=1)[:, None]
        centres = torch.where((number > 0)[:, None], means, centres)
    near = (_distances(centres, points) <= radius) & present
    return centres, torch.where(present, near.sum(dim=1), 0)


def _strongest_first(modes: Tensor, strength: Tensor) -> Int[Tensor, " n"]:
    """Order by strength, then by position, so that the order of the points does not matter."""
    order = torch.arange(len(modes), device=modes.device)
    for key in (*modes.unbind(dim=1)[::-1], strength):
        order = order[key[order].argsort(descending=True, stable=True)]
    return order


def _heads(modes: Tensor, counted: Tensor, radius: Tensor) -> Bool[Tensor, " n"]:
    """Mark the modes that are not near a stronger one that is kept."""
    close = _distances(modes, modes) <= radius
    place = torch.arange(len(modes), device=modes.device)
    for number in range(len(modes)):
        weaker = close[number] & (place > number) & counted[number]
        counted = counted & ~weaker
    return counted


def _distances(ones: Float[Tensor, "k m"], others: Float[Tensor, "n m"]) -> Float[Tensor, "k n"]:
    return torch.linalg.vector_norm(ones[:, None] - others, dim=2)
