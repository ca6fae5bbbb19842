"""Single linkage: points hang together by short steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.kernels.rows import smallest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def closest_majority(
    distances: Float[Tensor, "n n"], present: Bool[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """The first cluster to hold more than half of those present as longer steps are allowed.

    This is what HDBSCAN finds if a cluster has at least half the points plus one, a single one
    is allowed, and every point is its own core (`min_samples = 1`): two clusters of that size
    cannot be, so the hierarchy has no branches to choose between.
    """
    reach = joining_distances(distances, present)
    majority = present.sum() // 2 + 1
    # Where the majority-th nearest comes within reach, as seen from each point.
    needed = torch.where(smallest(reach, majority), reach, 0).amax(dim=1)
    needed = torch.where(present, needed, torch.inf)
    first = needed.argmin().view(1)
    members = reach.index_select(0, first) <= needed.index_select(0, first)[:, None]
    return members.squeeze(0) & present


def joining_distances(
    distances: Float[Tensor, "n n"], present: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The longest step on the way between two points that keeps it shortest; 0 to itself."""
    own = torch.eye(len(distances), dtype=torch.bool, device=distances.device)
    reach = torch.where(present[:, None] & present, distances, torch.inf)
    reach = torch.where(own, 0, reach)
    for via in range(len(distances)):  # Floyd and Warshall, with maximum for plus
        reach = torch.minimum(reach, torch.maximum(reach[:, via : via + 1], reach[via]))
    return reach
