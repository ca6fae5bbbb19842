"""A running quantile over the last values.

The values are kept sorted and padded with +inf, so one new value costs one shifted copy of a short
vector and the quantile is read off directly; sorting anew at every arrival would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

# "All values ever" means this many: a server that runs for years must not grow for years.
LONGEST = 1 << 15


class History(NamedTuple):
    """The last values observed; float64 because thresholds are compared with them."""

    ordered: Float[Tensor, " places"]  # window + 1 of them, ascending, +inf where unused
    recent: Float[Tensor, " window"]  # ring of the last values
    count: Int[Tensor, ""]  # values ever observed


def no_history(window: int, device: torch.device) -> History:
    """The history before the first value; `window = 0` means the longest possible."""
    window = window or LONGEST
    return History(
        torch.full((window + 1,), torch.inf, dtype=torch.float64, device=device),
        torch.full((window,), torch.inf, dtype=torch.float64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )


def observe(
    history: History, value: Float[Tensor, ""] | float, counts: Bool[Tensor, ""] | bool
) -> History:
    """Add a finite value where `counts` holds; the oldest leaves a full window.

    Where the history is on a CPU, plain numbers are accepted too.
    """
    if history.ordered.device.type == "cpu":
        if counts:
            observe_array(*arrays(history), float(value))
        return history
    assert not isinstance(value, float)
    assert not isinstance(counts, bool)
    return observe_reference(history, value, counts)


def observe_reference(history: History, value: Tensor, counts: Tensor) -> History:
    """`observe` in plain torch, on any device."""
    ordered, recent, count = history
    slot = count % len(recent)
    oldest = row(recent, slot)
    recent.index_copy_(0, slot.view(1), torch.where(counts, value, oldest)[None])
    # +inf stands for "nothing": it leaves from and falls among the padding.
    leaving, coming = torch.where(counts, torch.stack([oldest, value]), torch.inf)
    hole = torch.searchsorted(ordered, leaving)
    place = torch.searchsorted(ordered, coming)
    place = place - (hole < place).long()
    index = torch.arange(len(ordered), device=ordered.device)
    source = index - (index > place).long()
    source = (source + (source >= hole)).clamp(max=len(ordered) - 1)
    ordered = torch.where(index == place, coming, ordered[source])
    return History(ordered, recent, count + counts)


def arrays(history: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy views of a history on the CPU."""
    ordered, recent, count = history
    return ordered.numpy(), recent.numpy(), count.numpy()


def observe_array(ordered: np.ndarray, recent: np.ndarray, count: np.ndarray, value: float) -> None:
    """Add a value in place, moving only what lies between the value that leaves and the new one."""
    slot = int(count) % len(recent)
    hole = int(ordered.searchsorted(recent[slot]))
    place = int(ordered.searchsorted(value))
    if place > hole:
        place -= 1
        ordered[hole:place] = ordered[hole + 1 : place + 1]
    else:
        ordered[place + 1 : hole + 1] = ordered[place:hole]
    ordered[place] = recent[slot] = value
    count += 1


def quantile(history: History, level: float) -> Float[Tensor, ""]:
    """Quantile with linear interpolation between neighbours; +inf while nothing was observed."""
    if history.ordered.device.type == "cpu":
        return torch.tensor(quantile_array(*arrays(history), level), dtype=torch.float64)
    return quantile_reference(history, level)


def quantile_reference(history: History, level: float) -> Tensor:
    """`quantile` in plain torch, on any device."""
    newest = (history.count.clamp(max=len(history.recent)) - 1).clamp(min=0)
    position = level * newest.to(torch.float64)
    low = position.floor().long()
    below, above = row(history.ordered, low), row(history.ordered, torch.minimum(low + 1, newest))
    inside = below + (above - below) * (position - low)
    return torch.where(above == below, below, inside)  # inf - inf is NaN


def quantile_array(
    ordered: np.ndarray, recent: np.ndarray, count: np.ndarray, level: float
) -> float:
    """`quantile` on NumPy views."""
    newest = max(min(int(count), len(recent)) - 1, 0)
    low = int(level * newest)
    below, above = float(ordered[low]), float(ordered[min(low + 1, newest)])
    return below if above == below else below + (above - below) * (level * newest - low)


def passing_bound(history: History, level: float) -> Float[Tensor, ""]:
    """Largest value that, once observed, is not above the quantile it helps to make.

    Among N others that is the one with floor(level N) below it: a larger value is itself the upper
    of the two neighbours the quantile lies between, or above both. +inf if every value passes.
    """
    window = len(history.recent)
    others = history.count.clamp(max=window - 1)
    place = (level * others.to(torch.float64)).floor().long()
    # The oldest leaves a full window before the quantile is taken; +inf stands for "none does".
    hole = torch.searchsorted(history.ordered, row(history.recent, history.count % window))
    return row(history.ordered, place + (place >= hole))
