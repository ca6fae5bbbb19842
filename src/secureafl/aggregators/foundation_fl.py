"""FoundationFL: copies of the most central client join the clients; then a plain rule.

The coordinate-wise largest and smallest values form two extreme updates. The client farthest from
the nearer of the two is most central; half as many copies of it as there are clients join in, and
the median (or another rule) is taken over all.

Fang, Nabavirazavi, Liu, Sun, Iyengar, Yang, "Do we really need to design new Byzantine-robust
aggregation rules?", NDSS 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from secureafl.aggregators.wrapper import Wrapper
from secureafl.core.inactivity import forget
from secureafl.core.rules import apply_rule
from secureafl.linalg.rows import masked
from secureafl.linalg.vectors import exact_norm, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class FoundationFl(Wrapper):
    """The inner rule over the clients and copies of the most central one."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Any:
        return self.inner.init(num_clients + num_clients // 2, weights)

    def forget(self, state: Any, client: Int[Tensor, ""]) -> Any:
        return forget(self.inner, state, client)

    def aggregate_with_root(
        self,
        state: Any,
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        root_gradient: Float[Tensor, " d"] | None,
    ) -> tuple[Float[Tensor, " d"], Any]:
        central = row(masked(values, present), _most_central(values, present))
        copies = len(values) // 2
        place = torch.arange(copies, device=values.device)
        more = torch.cat([values, central.expand(copies, -1)])
        counted = torch.cat([present, place < present.sum() // 2])
        return apply_rule(self.inner, state, more, counted, root_gradient)


def _most_central(values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]) -> Int[Tensor, ""]:
    """The client farthest from the nearer one of the two extremes."""
    highest = torch.where(present[:, None], values, -torch.inf).amax(dim=0)
    lowest = torch.where(present[:, None], values, torch.inf).amin(dim=0)
    nearest = torch.minimum(exact_norm(values - highest), exact_norm(values - lowest))
    return torch.where(present, nearest, -torch.inf).argmax()
