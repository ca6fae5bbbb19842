"""k-means of plain numbers, exactly: clusters on a line are intervals, so all cuts can be tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def upper_cluster(
    values: Float[Tensor, "*sets n"], present: Bool[Tensor, "*sets n"], clusters: int
) -> tuple[Bool[Tensor, "*sets n"], Float[Tensor, " *sets"]]:
    """The members of the highest cluster, and the sum of squares within all clusters.

    Equal values are never parted, so there may be fewer clusters than asked for; if all values are
    equal, nobody is in the highest one. Of cuts that are as good up to rounding the lowest is
    taken. Values are float64.
    """
    ordered = torch.where(present, values, torch.inf).sort(dim=-1).values
    costs = _interval_costs(ordered)
    number = values.shape[-1]
    # A cut at place i parts the i smallest values from the others; at 0 it parts nothing.
    allowed = torch.zeros(*values.shape[:-1], number + 1, dtype=torch.bool, device=values.device)
    allowed[..., 1:number] = (ordered[..., :-1] < ordered[..., 1:]) & ordered[..., 1:].isfinite()
    best = torch.where(allowed, costs[..., 0, :], torch.inf)  # one cluster below a cut
    for _ in range(clusters - 2):
        lower = (best[..., :, None] + costs).amin(dim=-2)
        best = torch.where(allowed, torch.minimum(best, lower), torch.inf)
    total, whole = best + costs[..., :, -1], costs[..., 0, -1]
    relative = (total / whole[..., None]).round(decimals=12)
    least = relative.amin(dim=-1, keepdim=True)
    cut = (relative > least).long().cumprod(dim=-1).sum(dim=-1, keepdim=True)
    upper = values >= ordered.take_along_dim(cut.clamp(max=number - 1), dim=-1)
    parted = allowed.any(dim=-1)
    within = total.take_along_dim(cut.clamp(max=number), dim=-1).squeeze(-1)
    return upper & present & parted[..., None], torch.where(parted, within, whole)


def _interval_costs(ordered: Float[Tensor, "*sets n"]) -> Float[Tensor, "*sets m m"]:
    """[i, j]: sum of squares of the values from the i-th to before the j-th around their mean."""
    present = ordered.isfinite()
    count = present.sum(dim=-1, keepdim=True).clamp(min=1)
    # Seen from their mean, so that squares do not cancel.
    centred = torch.where(present, ordered, 0)
    centred = torch.where(present, ordered - centred.sum(dim=-1, keepdim=True) / count, 0)
    sums = [_prefix_sums(x) for x in (present.double(), centred, centred**2)]
    members, linear, square = (x[..., None, :] - x[..., :, None] for x in sums)
    costs = (square - linear**2 / members.clamp(min=1)).clamp(min=0)
    return torch.where(members >= 0, costs, torch.inf)


def _prefix_sums(values: Float[Tensor, "*sets n"]) -> Float[Tensor, "*sets m"]:
    return torch.cat([torch.zeros_like(values[..., :1]), values.cumsum(dim=-1)], dim=-1)
