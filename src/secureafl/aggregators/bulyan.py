"""Bulyan: Krum again and again for a committee, then a trimmed mean inside it.

Krum picks n - 2f clients one by one, each time among those left. In every coordinate the mean is
taken over the values nearest to the committee's median, all but 2f of them: so a client that Krum
lets through cannot hide a large error in a single coordinate.

The proof wants n >= 4f + 3. With fewer clients f stays as it is, and at least one client is picked
and one value kept.

El Mhamdi, Guerraoui, Rouault, "The hidden vulnerability of distributed learning in Byzantium",
ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.aggregators.krum import krum_scores, neighbours
from secureafl.core.shares import require_minority
from secureafl.kernels.order import ordered
from secureafl.linalg.rows import assumed_malicious
from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Bulyan:
    """Mean around the median of those whom repeated Krum selects."""

    share: float = 0.2  # f / n, clients assumed malicious

    def __post_init__(self) -> None:
        require_minority("share", self.share)

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        count = present.sum()
        malicious = assumed_malicious(count, self.share)
        wanted = torch.minimum((count - 2 * malicious).clamp(min=1), count)
        committee = _committee(values, present, malicious, wanted)
        kept = torch.minimum((wanted - 2 * malicious).clamp(min=1), wanted)
        return _around_median(ordered(values, committee), wanted, kept), state


def _committee(
    values: Float[Tensor, "n d"],
    present: Bool[Tensor, " n"],
    malicious: Int[Tensor, ""],
    wanted: Int[Tensor, ""],
) -> Bool[Tensor, " n"]:
    """Krum's selection, `wanted` times, each among those not yet chosen."""
    distances, order = neighbours(values, present)
    place = torch.arange(len(values), device=values.device)
    left = present
    for turn in range(len(values)):
        best = krum_scores(distances, order, left, malicious).argmin()
        left = left & ((place != best) | (turn >= wanted))
    return present & ~left


def _around_median(
    rows: Float[Tensor, "n d"], count: Int[Tensor, ""], kept: Int[Tensor, ""]
) -> Float[Tensor, " d"]:
    """Mean of the `kept` values nearest to the median of the first `count`, in each column.

    The columns ascend, so the nearest values lie side by side: their window moves up as long as
    the value it would lose is farther from the median than the one it would gain.
    """
    low, high = ((count - 1) // 2).clamp(min=0), count // 2
    middle = row(rows, low) / 2 + row(rows, high.clamp(max=len(rows) - 1)) / 2
    place = torch.arange(len(rows), device=rows.device)
    gained = rows.index_select(0, (place + kept).clamp(max=len(rows) - 1))
    moves = (middle - rows > gained - middle) & (place < count - kept)[:, None]
    start = moves.sum(dim=0)
    inside = (place[:, None] >= start) & (place[:, None] < start + kept)
    return (torch.where(inside, rows, 0) / kept.clamp(min=1)).sum(dim=0)
