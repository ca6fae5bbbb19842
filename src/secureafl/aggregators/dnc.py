"""DnC: leave out the clients that stand out along the direction of greatest spread.

Colluding attackers that shift the mean must stretch the cloud of updates somewhere. On a random
selection of coordinates, the updates are centred and projected on their top singular vector; the
clients with the largest projections are left out, and the rest averaged.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses
for federated learning", NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.core.random import random_bits
from secureafl.core.shares import require_minority
from secureafl.linalg.rows import assumed_malicious, masked, mean_of, smallest
from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_SQUARINGS = 20  # the top singular value stands out if it exceeds the next by 1e-5 of itself


@dataclass(frozen=True)
class Dnc:
    """Mean without the clients of largest projection; remembers how often it drew."""

    share: float = 0.2  # b / n, clients assumed malicious
    removed: float = 1.0  # c; clients left out, per client assumed malicious
    iterations: int = 1  # a client left out in one of them is out
    sampled: int = 10_000  # coordinates looked at

    def __post_init__(self) -> None:
        require_minority("share", self.share)
        require(0 < self.removed < torch.inf, "removed", self.removed, "give a factor above 0")
        require(self.iterations >= 1, "iterations", self.iterations, "give 1 or more")
        require(self.sampled >= 1, "sampled", self.sampled, "give 1 coordinate or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Int[Tensor, ""]:
        return torch.zeros((), dtype=torch.int64, device=weights.device)

    def aggregate(
        self, state: Int[Tensor, ""], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Int[Tensor, ""]]:
        rows, count = masked(values, present), present.sum()
        malicious = assumed_malicious(count, self.share)
        left_out = torch.ceil(malicious.double() * self.removed - 1e-9).long()
        kept = (count - left_out).clamp(min=1)
        good = latest = present
        for turn in range(self.iterations):
            columns = sampled_columns(
                state * self.iterations + turn, rows.shape[1], min(self.sampled, rows.shape[1])
            )
            scores = _projections(rows.index_select(1, columns).double(), present)
            latest = present & smallest(torch.where(present, scores, torch.inf), kept)
            good = good & latest
        # Several iterations may leave nobody; then the last one decides.
        return mean_of(rows, torch.where(good.any(), good, latest)), state + 1


def sampled_columns(draw: Int[Tensor, ""], total: int, wanted: int) -> Int[Tensor, " wanted"]:
    """Distinct columns, one from each of `wanted` equal stretches: no layer is left out."""
    edges = torch.arange(wanted + 1, device=draw.device) * total // wanted
    start, width = edges[:-1], edges[1:] - edges[:-1]
    return start + torch.remainder(random_bits(draw, wanted), width)


def _projections(rows: Float[Tensor, "n m"], present: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Squared projections on the top right singular vector, up to a common factor.

    They are the squares of the top left one, which repeated squaring of the inner products brings
    out: without reading a number back, as a library's decomposition would.
    """
    centred = torch.where(present[:, None], rows - mean_of(rows, present), 0)
    power = centred @ centred.T
    for _ in range(_SQUARINGS):
        power = power / power.diagonal().amax().clamp(min=torch.finfo(power.dtype).tiny)
        power = power @ power
    return row(power, power.diagonal().argmax()).square()
