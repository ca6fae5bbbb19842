"""FoolsGold: clients that keep pulling in the same direction share one weight.

Sybils serve one purpose, so their summed updates point the same way; honest clients differ. Each
client's weight falls with its greatest cosine to another client's sum of updates so far; one that
merely resembles somebody more suspicious is pardoned in part.

The weighted updates are averaged, not added up, so that the step keeps the size of an update. If
everybody has an exact twin, nobody stands out, and the plain mean is taken.

Fung, Yoon, Beschastnikh, "The limitations of federated learning in sybil settings", RAID 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.linalg.pairwise import cosines
from secureafl.linalg.rows import masked, weighted_mean

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class FoolsGold:
    """Mean weighted by how unlike others a client's sum of updates is; remembers that sum."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
        return weights.new_zeros(num_clients, weights.numel())

    def aggregate(
        self, state: Float[Tensor, "n d"], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, "n d"]]:
        rows = masked(values, present)
        history = state.add_(rows)
        weights = torch.where(present, _weights(cosines(history), present), 0)
        weights = torch.where(weights.any(), weights, present.double())
        return weighted_mean(rows, weights), history

    def forget(self, state: Float[Tensor, "n d"], client: Int[Tensor, ""]) -> Float[Tensor, "n d"]:
        return state.index_fill_(0, client.view(1), 0)


def _weights(cosine: Float[Tensor, "n n"], present: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    others = ~torch.eye(len(cosine), dtype=torch.bool, device=cosine.device)
    # A client has 0 with itself: one that is opposed to all others is as unlike as can be.
    alike = torch.where(others & present[:, None] & present, cosine, 0)
    most = alike.amax(dim=1)
    pardoned = torch.where(most[:, None] < most, alike * (most[:, None] / most), alike)
    unlike = torch.where(present, 1 - pardoned.amax(dim=1), 0).clamp(0, 1)
    unlike = (unlike / unlike.amax()).clamp(max=0.99)
    # The logit spreads the middle; below 0 or above 1 it is cut off. No weight at all: 0 / 0.
    return torch.logit(unlike.nan_to_num(nan=0)).add(0.5).clamp(0, 1)
