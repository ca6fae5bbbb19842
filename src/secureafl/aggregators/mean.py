"""Mean of the clients present. Not robust: one client moves it anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.linalg.rows import masked, mean_of, weighted_mean

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """Arithmetic mean; the first ablation variant of the SecureAFL paper."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def ranks(self, count: Int[Tensor, ""]) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
        return torch.zeros_like(count), count - 1

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        return mean_of(masked(values, present), present), state

    def aggregate_weighted(
        self,
        state: tuple[()],
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        samples: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        return weighted_mean(masked(values, present), torch.where(present, samples, 0)), state
