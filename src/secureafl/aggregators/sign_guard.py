"""SignGuard: keep usual lengths and usual shares of signs, clip, average.

Updates much shorter or longer than the median are left out. On a random tenth of the coordinates,
the shares of positive, zero and negative entries place each client in a cube; mean shift finds
the largest cluster there. What passes both is clipped to the median length and averaged.

If nobody passes both, the length alone decides. With fewer than four clients, or where half of
them have the same shares of signs as others, there are no clusters to tell apart and everybody
passes the second test.

Xu, Huang, Song, Lan, "Byzantine-robust federated learning through collaborative malicious gradient
filtering", ICDCS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.core.random import random_bits
from secureafl.linalg.mean_shift import largest_cluster
from secureafl.linalg.rows import clip_factors, masked, median_of
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class SignGuard:
    """Clipped mean of clients with usual lengths and signs; remembers how often it drew."""

    shortest: float = 0.1  # median lengths
    longest: float = 3.0  # above 2, so that the longer of two middle ones always passes
    sampled: float = 0.1  # share of the coordinates whose signs are counted

    def __post_init__(self) -> None:
        require(0 <= self.shortest < 1, "shortest", self.shortest, "give 0 to below 1")
        require(2 < self.longest < torch.inf, "longest", self.longest, "give a factor above 2")
        require(0 < self.sampled <= 1, "sampled", self.sampled, "give a share above 0, at most 1")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Int[Tensor, ""]:
        return torch.zeros((), dtype=torch.int64, device=weights.device)

    def aggregate(
        self, state: Int[Tensor, ""], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Int[Tensor, ""]]:
        rows = masked(values, present)
        lengths = exact_norm(rows)
        typical = median_of(lengths, present)
        usual = present & (lengths > self.shortest * typical) & (lengths < self.longest * typical)
        alike = largest_cluster(self._signs(state, rows, present), present)
        both = usual & alike
        kept = torch.where(both.any(), both, usual)
        shares = clip_factors(lengths, typical) / kept.sum().clamp(min=1)
        return torch.where(kept, shares, 0).to(rows.dtype) @ rows, state + 1

    def _signs(
        self, draw: Int[Tensor, ""], rows: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> Float[Tensor, "n 3"]:
        """Shares of positive, zero and negative entries, each over the largest of its kind."""
        size = rows.shape[1]
        number = max(1, int(self.sampled * size))
        start = torch.remainder(random_bits(draw, 1), size - number + 1)
        part = rows.index_select(1, start + torch.arange(number, device=rows.device))
        counts = [(part > 0).sum(dim=1), (part == 0).sum(dim=1), (part < 0).sum(dim=1)]
        shares = torch.where(present[:, None], torch.stack(counts, dim=1), 0).double()
        return shares / shares.amax(dim=0).clamp(min=1)
