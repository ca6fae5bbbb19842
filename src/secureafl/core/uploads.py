"""The last real upload of every client: what the filter and the estimators look back at."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.vectors import set_row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from secureafl.core.types import Arrival


class Uploads(NamedTuple):
    """Row k is client k's."""

    gradient: Float[Tensor, "n d"]  # g_k
    base: Float[Tensor, "n d"]  # w_k, the model that gradient was computed on
    known: Bool[Tensor, " n"]


def no_uploads(num_clients: int, weights: Tensor) -> Uploads:
    """Nobody has been heard of."""
    rows = (num_clients, weights.numel())
    known = torch.zeros(num_clients, dtype=torch.bool, device=weights.device)
    return Uploads(weights.new_zeros(rows), weights.new_zeros(rows), known)


def with_upload(uploads: Uploads, arrival: Arrival, keep: Tensor) -> Uploads:
    """Write the arrival into its client's row, in place, where `keep` holds."""
    set_row(uploads.gradient, arrival.client, arrival.gradient, keep)
    set_row(uploads.base, arrival.client, arrival.base, keep)
    set_row(uploads.known, arrival.client, torch.ones_like(keep), keep)
    return uploads
