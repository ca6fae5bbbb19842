"""The closest-knit majority of some points, from their distances alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def closest_majority(
    distances: Float[Tensor, "n n"], present: Bool[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """The first group to hold more than half the points present when near points are joined first.

    Joining by single linkage, this is the group HDBSCAN finds if clusters need a majority, core
    distances are zero (`min_samples = 1`) and one cluster is allowed: no second majority can
    exist, so nothing is left to its choice among clusters. Points joined at the same distance
    belong to it too. Of several groups (nobody present) none is returned.
    """
    n = len(present)
    joined = joining_distances(distances, present)
    majority = present.sum() // 2 + 1
    # A point's group holds a majority from its majority-th smallest joining distance on.
    reached = joined.sort(dim=1).values.index_select(1, (majority - 1).clamp(max=n - 1).view(1))
    reached = torch.where(present, reached.view(n), torch.inf)
    centre = reached.argmin()
    inside = joined.index_select(0, centre.view(1)).view(n) <= reached.min()
    return inside & present


def joining_distances(
    distances: Float[Tensor, "n n"], present: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The longest hop of the best path between two points: the distance they are joined at."""
    n = len(present)
    pairs = present[:, None] & present[None, :]
    joined = torch.where(pairs, distances, torch.inf)
    joined = joined.masked_fill(torch.eye(n, dtype=torch.bool, device=joined.device), 0.0)
    for _ in range(max(1, (n - 1).bit_length())):  # paths of 2, 4, 8, ... hops
        joined = torch.maximum(joined[:, :, None], joined[None, :, :]).amin(dim=1)
    return joined
