"""Rows of a matrix, one per client, of which only some count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.linalg.order import order_mean
from secureafl.linalg.vectors import exact_norm, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

TINY = 1e-30  # keeps denominators above 0
_BLOCK = 1 << 16  # coordinates turned into float64 at a time, not to double the memory


def masked(values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """The rows present, zeros elsewhere; not always a copy.

    >>> secureafl.masked(torch.ones(2, 2), present=torch.tensor([True, False]))
    tensor([[1., 1.],
            [0., 0.]])
    """
    if values.device.type == "cpu" and bool(present.all()):
        return values
    return torch.where(present[:, None], values, 0)


def assumed_malicious(count: Int[Tensor, ""], share: float) -> Int[Tensor, ""]:
    """A share of the clients as a number, rounded up, but always a minority."""
    # Rounded up, or a tenth of one attacker would stay in. The small subtraction undoes rounding:
    # 0.07 * 100 = 7.000000000000001.
    number = torch.ceil(count.double() * share - 1e-9).long()
    return torch.minimum(number, ((count - 1) // 2).clamp(min=0))


def smallest(scores: Float[Tensor, "*n m"], number: Int[Tensor, " ..."]) -> Bool[Tensor, "*n m"]:
    """Mark the `number` smallest entries of the last axis; of equal ones, the first."""
    return scores.argsort(dim=-1, stable=True).argsort(dim=-1) < number


def mean_of(rows: Float[Tensor, "n d"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, " d"]:
    """Mean of the chosen rows; zero if there is none. The others must be finite.

    >>> secureafl.mean_of(torch.tensor([[1.0], [3.0], [99.0]]), torch.tensor([True, True, False]))
    tensor([2.])
    """
    return weighted_mean(rows, chosen.double())


def weighted_mean(rows: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> Float[Tensor, " d"]:
    """Mean with weights of at least 0; zero if all of them are. The rows must be finite."""
    total = weights.sum()
    return torch.where(total > 0, weights / total, 0).to(rows.dtype) @ rows


def deviation_of(
    rows: Float[Tensor, "n d"], chosen: Bool[Tensor, " n"], mean: Float[Tensor, " d"]
) -> Float[Tensor, " d"]:
    """Standard deviation of each coordinate of the chosen rows around their mean, in float64."""
    weights, blocks = chosen / chosen.sum().clamp(min=1).double(), []
    for part, centre in zip(rows.split(_BLOCK, dim=1), mean.split(_BLOCK), strict=True):
        blocks.append((weights @ (part - centre.double()).square()).sqrt())
    return torch.cat(blocks)


def median_of(numbers: Float[Tensor, " n"], present: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """The median of the numbers present, or the mean of the two middle ones; 0 without any.

    >>> secureafl.median_of(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    count = present.sum()
    middle = order_mean(numbers[:, None], present, (count - 1) // 2, count // 2).squeeze(0)
    return torch.where(count > 0, middle, 0)


def lower_median(values: Float[Tensor, " n"], which: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """The median of the values marked, of two middle ones the smaller; infinite without any.

    >>> values, which = torch.tensor([5.0, 1.0, 3.0, 9.0]), torch.tensor([True, True, True, False])
    >>> secureafl.lower_median(values, which)
    tensor(3.)
    """
    ordered = torch.where(which, values, torch.inf).sort().values
    return row(ordered, (which.sum() - 1).clamp(min=0) // 2)


def rise(values: Float[Tensor, " *n"], start: float, end: float) -> Float[Tensor, " *n"]:
    """From 0, where values are `start` or less, to 1, where they are `end` or more.

    >>> from secureafl.linalg.rows import rise
    >>> rise(torch.tensor([1.0, 2.5, 9.0]), start=2, end=3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return ((values - start) / (end - start)).clamp(min=0, max=1)


def clip_factors(
    lengths: Float[Tensor, " *n"], radius: Float[Tensor, ""] | float
) -> Float[Tensor, " *n"]:
    """Factors that clip vectors of these lengths to the radius."""
    return torch.where(lengths > radius, radius / lengths, 1.0)


def directions(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The rows scaled to length 1; rows of zeros or of negligible length stay as they are."""
    lengths = exact_norm(rows).to(rows.dtype)
    return rows / torch.where(lengths > torch.finfo(rows.dtype).tiny, lengths, 1)[:, None]
