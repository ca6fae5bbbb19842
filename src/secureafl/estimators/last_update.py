"""A silent client would send what it sent last: no curvature, no extra memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.types import Arrival, Entry, Inner, SecantProducts
from secureafl.kernels.tiles import GRADIENT

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class LastUpdate:
    """The last upload as it is."""

    @property
    def slots(self) -> int:
        return 0

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def observe(
        self, notes: tuple[()], secant: SecantProducts, arrival: Arrival, keep: Bool[Tensor, ""]
    ) -> tuple[Entry, tuple[()]]:
        return Entry(arrival.client.view(1)[:0], (), keep), notes

    def shares(self, notes: tuple[()], inner: Inner) -> Float[Tensor, "n parts"]:
        shares = torch.zeros_like(inner.model)
        shares[:, GRADIENT] = 1
        return shares
