"""FLTrust: trust clients as far as they agree with the server's own gradient.

The server computes a gradient on clean samples of its own. A client weighs the cosine of its
update to that gradient, or nothing if that is negative; updates are brought to the length of the
server's, so that nobody gains by length. If nobody is trusted, the result is zero.

Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping",
NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import ConfigError
from secureafl.linalg.rows import directions, masked, weighted_mean
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class FlTrust:
    """Mean weighted by the cosine to the gradient on the root data."""

    needs_root_data = True

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        raise ConfigError("fltrust: it needs root data, clean samples of the server's own")

    def aggregate_with_root(
        self,
        state: tuple[()],
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        root_gradient: Float[Tensor, " d"],
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        own = exact_norm(root_gradient)
        units, unit = directions(masked(values, present)), directions(root_gradient[None])[0]
        trust = torch.where(present, (units @ unit).double().clamp(min=0), 0)
        return own.to(values.dtype) * weighted_mean(units, trust), state
