"""A silent client would send the mean of its last uploads.

A mean of uploads on small batches has less of their sampling noise than the last one alone. The
price is that it lags behind the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Entry, Inner, SecantProducts
from secureafl.kernels.rows import set_row
from secureafl.kernels.tiles import OWN
from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class Notes(NamedTuple):
    """Uploads remembered of each client; number k lies in place k modulo the length."""

    count: Int[Tensor, " n"]


@dataclass(frozen=True)
class HistoryMean:
    """Mean of each client's last uploads."""

    length: int = 5

    def __post_init__(self) -> None:
        require(self.length >= 1, "length", self.length, "give 1 or more uploads")

    @property
    def slots(self) -> int:
        return self.length

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Notes:
        return Notes(torch.zeros(num_clients, dtype=torch.int64, device=weights.device))

    def observe(
        self, notes: Notes, secant: SecantProducts, arrival: Arrival, keep: Bool[Tensor, ""]
    ) -> tuple[Entry, Notes]:
        count = row(notes.count, arrival.client)
        set_row(notes.count, arrival.client, count + 1, keep)
        place = (count % self.length).view(1)
        return Entry(place, ("upload",), keep), notes

    def forget(self, state: Notes, client: Int[Tensor, ""]) -> Notes:
        return Notes(state.count.index_fill_(0, client.view(1), 0))

    def shares(self, notes: Notes, inner: Inner) -> Float[Tensor, "n parts"]:
        filled = notes.count.clamp(min=1, max=self.length)[:, None]
        place = torch.arange(self.length, device=filled.device)
        share = torch.where(place < filled, 1 / filled.double(), 0)
        nothing = torch.zeros_like(inner.model[:, :OWN])  # of the last upload and the drift
        return torch.cat([nothing, share], dim=1)
