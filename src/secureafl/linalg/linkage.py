"""Single-linkage clustering of any number of sets of points at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from secureafl.linalg.rows import smallest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

_AT_ONCE = 128  # points of which a GPU looks at all triples: more work, but few launches


def closest_majority(
    distances: Float[Tensor, "*sets n n"], present: Bool[Tensor, "*sets n"]
) -> Bool[Tensor, "*sets n"]:
    """The first cluster to hold more than half of those present as longer steps are allowed.

    This is what HDBSCAN finds if a cluster has at least half the points plus one, a single one
    is allowed, and every point is its own core (`min_samples = 1`): two clusters of that size
    cannot be, so the hierarchy has no branches to choose between.
    """
    reach = joining_distances(distances, present)
    majority = present.sum(dim=-1)[..., None, None] // 2 + 1
    # Where the majority-th nearest comes within reach, as seen from each point.
    needed = torch.where(smallest(reach, majority), reach, 0).amax(dim=-1)
    least, first = torch.where(present, needed, torch.inf).min(dim=-1, keepdim=True)
    from_first = reach.take_along_dim(first[..., None], dim=-2).squeeze(-2)
    return (from_first <= least) & present


def joining_distances(
    distances: Float[Tensor, "*sets n n"], present: Bool[Tensor, "*sets n"]
) -> Float[Tensor, "*sets n n"]:
    """Single-linkage distances: the longest step on the path where that is shortest."""
    number = present.shape[-1]
    own = torch.eye(number, dtype=torch.bool, device=distances.device)
    reach = torch.where(present[..., :, None] & present[..., None, :], distances, torch.inf)
    reach = torch.where(own, 0, reach)
    if reach.device.type == "cpu" or number > _AT_ONCE:
        for via in range(number):  # Floyd and Warshall, with maximum for plus
            through = torch.maximum(reach[..., :, via, None], reach[..., None, via, :])
            reach = torch.minimum(reach, through)
        return reach
    for _ in range((number - 1).bit_length()):  # ways of twice as many steps each time
        reach = torch.maximum(reach[..., :, :, None], reach[..., None, :, :]).amin(dim=-2)
    return reach
