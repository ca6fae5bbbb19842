"""A running quantile over all values so far, or over a sliding window of them.

The values are kept sorted and padded with +inf, so one new value costs one shifted copy of a short
vector and the quantile is read off directly; sorting anew at every arrival would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_FIRST_CAPACITY = 1024


class History(NamedTuple):
    """Values seen; float64 because thresholds are compared with them."""

    ordered: Float[Tensor, " capacity"]  # ascending, +inf where unused
    recent: Float[Tensor, " window"]  # ring of the last values; empty without a window
    count: Int[Tensor, ""]  # values ever observed


def no_history(window: int, device: torch.device) -> History:
    """Nothing seen; `window = 0` keeps everything."""
    capacity = window + 1 if window else _FIRST_CAPACITY
    return History(
        torch.full((capacity,), torch.inf, dtype=torch.float64, device=device),
        torch.full((window,), torch.inf, dtype=torch.float64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )


def observe(
    history: History, value: Float[Tensor, ""], counts: Bool[Tensor, ""], calls: int
) -> History:
    """Add a finite value where `counts` holds; `calls` is how often this was called before."""
    ordered, recent, count = history
    value = torch.where(counts, value, torch.inf)  # +inf falls among the padding: no change
    window = recent.numel()
    if window:
        slot = count % window
        oldest = row(recent, slot)
        ordered = _without(ordered, torch.where(counts, oldest, torch.inf))
        recent = recent.index_copy(0, slot.view(1), torch.where(counts, value, oldest)[None])
    elif calls + 1 >= ordered.numel():
        ordered = torch.cat([ordered, torch.full_like(ordered, torch.inf)])
    return History(_with(ordered, value), recent, count + counts)


def quantile(history: History, level: float) -> Float[Tensor, ""]:
    """Quantile with linear interpolation between neighbours; +inf while nothing was seen."""
    size = history.count
    if history.recent.numel():
        size = size.clamp(max=history.recent.numel())
    position = level * (size - 1).clamp(min=0).to(torch.float64)
    low = position.floor().long()
    high = torch.minimum(low + 1, (size - 1).clamp(min=0))
    below, above = row(history.ordered, low), row(history.ordered, high)
    inside = below + (above - below) * (position - low)
    return torch.where(above == below, below, inside)  # inf - inf is NaN


def _with(ordered: Tensor, value: Tensor) -> Tensor:
    place = torch.searchsorted(ordered, value)
    index = torch.arange(ordered.numel(), device=ordered.device)
    shifted = ordered.roll(1)
    return torch.where(index < place, ordered, torch.where(index == place, value, shifted))


def _without(ordered: Tensor, value: Tensor) -> Tensor:
    place = torch.searchsorted(ordered, value)
    index = torch.arange(ordered.numel(), device=ordered.device)
    shifted = torch.cat([ordered[1:], torch.full_like(ordered[:1], torch.inf)])
    return torch.where(index < place, ordered, shifted)
