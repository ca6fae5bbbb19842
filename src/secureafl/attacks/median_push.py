"""How far b equal uploads of malicious clients can push a coordinate-wise median.

Beside h sorted values v and b copies of one value m, the k-th smallest of all is m, but not below
v[k - b] and not above v[k]: so one sort serves every value that is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.kernels.order import ordered

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

MOST = 10.0  # largest gamma
_STEPS = 40  # gammas tried, beside 0
_SLACK = 0.01  # share of the damage that a smaller gamma is worth


class HonestStats(NamedTuple):
    """Statistics of the honest clients' values, in every coordinate."""

    count: Int[Tensor, ""]  # h; the rest means nothing if it is 0
    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    median: Float[Tensor, " d"]
    low: Float[Tensor, "2 d"]  # bounds of the lower and upper middle value under attack
    high: Float[Tensor, "2 d"]


def honest_stats(
    values: Float[Tensor, "n d"], honest: Bool[Tensor, " n"], copies: Int[Tensor, ""]
) -> HonestStats:
    """Statistics of the honest rows, to which `copies` malicious ones are added."""
    count = honest.sum()
    number, rows = count.clamp(min=1), honest[:, None]
    # Divide before adding: the sum might not fit the dtype.
    mean = (torch.where(rows, values, 0) / number).sum(dim=0)
    std = (torch.where(rows, values - mean, 0) ** 2 / number).sum(dim=0).sqrt()
    ranked = ordered(values, honest)
    middle = _middle(count + copies)
    below = middle - copies
    low = torch.where(below[:, None] >= 0, ranked[below.clamp(min=0)], -torch.inf)
    median = ranked[_middle(number)].mean(dim=0)
    return HonestStats(count, mean, std, median, low, ranked[middle])


def _middle(count: Int[Tensor, ""]) -> Int[Tensor, " 2"]:
    return torch.stack([(count - 1) // 2, count // 2])


def crafted(honest: HonestStats, gamma: Tensor | float) -> Float[Tensor, " d"]:
    """The mean, gamma standard deviations against the median's sign."""
    return honest.mean - gamma * honest.std * honest.median.sign()


def damage(honest: HonestStats, gamma: Tensor | float) -> Float[Tensor, ""]:
    """How far the median under attack points against the one without, in float64."""
    pushed = torch.minimum(crafted(honest, gamma), honest.high).maximum(honest.low).mean(dim=0)
    return -(honest.median.double() @ pushed.double())


def smallest_best(honest: HonestStats) -> Float[Tensor, ""]:
    """The smallest gamma of a grid whose damage is about the largest.

    Each coordinate is pushed one way only, so damage grows with gamma: the search halves.
    """
    best = damage(honest, MOST)
    goal = best - _SLACK * best.abs()
    low, high = torch.zeros_like(honest.count), torch.full_like(honest.count, _STEPS)
    for _ in range(_STEPS.bit_length()):
        tried = (low + high) // 2
        enough = damage(honest, tried.to(honest.mean.dtype) * (MOST / _STEPS)) >= goal
        low, high = torch.where(enough, low, tried + 1), torch.where(enough, tried, high)
        low = torch.minimum(low, high)
    return high.to(honest.mean.dtype) * (MOST / _STEPS)
