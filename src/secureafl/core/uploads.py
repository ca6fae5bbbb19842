"""The last upload of every client, where the filter must see more of them than estimates do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival


class Uploads(NamedTuple):
    """The last uploads, one row per client."""

    gradient: Float[Tensor, "n d"]  # g_k
    base: Float[Tensor, "n d"]  # w_k, the model that gradient was computed on
    known: Bool[Tensor, " n"]


def no_uploads(num_clients: int, weights: Tensor) -> Uploads:
    """The table before the first upload."""
    rows = (num_clients, weights.numel())
    known = torch.zeros(num_clients, dtype=torch.bool, device=weights.device)
    return Uploads(weights.new_zeros(rows), weights.new_zeros(rows), known)


def with_upload(uploads: Uploads, arrival: Arrival) -> Uploads:
    """Write the arrival into its client's row, in place."""
    index = arrival.client.view(1)
    uploads.gradient.index_copy_(0, index, arrival.gradient[None])
    uploads.base.index_copy_(0, index, arrival.base[None])
    uploads.known.index_fill_(0, index, True)
    return uploads


def without_uploads(uploads: Uploads, client: Int[Tensor, ""]) -> Uploads:
    """As if the client had never sent any, in place."""
    for rows in uploads:
        rows.index_fill_(0, client.view(1), 0)
    return uploads
