"""What the adaptive server optimisers share: a mean of steps over the root of their mean square.

As in Algorithm 2 of FedOpt there is no bias correction, and mean squares begin with the square of
`adaptivity`.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive federated optimization",
ICLR 2021.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class State(NamedTuple):
    """Moments of the steps so far, coordinate by coordinate."""

    mean: Float[Tensor, " d"]  # m
    square: Float[Tensor, " d"]  # v


def begin(weights: Float[Tensor, " d"], adaptivity: float) -> State:
    """The moments before the first step."""
    return State(torch.zeros_like(weights), torch.full_like(weights, adaptivity**2))


def update_mean(state: State, step: Float[Tensor, " d"], beta1: float) -> Float[Tensor, " d"]:
    """M <- beta1 m + (1 - beta1) step."""
    return torch.lerp(step, state.mean, beta1)


def moved(
    state: State, learning_rate: float, adaptivity: float
) -> tuple[Float[Tensor, " d"], State]:
    """The move learning_rate m / (sqrt(v) + adaptivity), and the state it was made of."""
    return learning_rate * state.mean / (state.square.sqrt() + adaptivity), state


def require_settings(learning_rate: float, **decays: float) -> None:
    """Raise unless these can be a server's learning rate and the shares that moments keep."""
    remedy = "give a rate above 0, at most 100"
    require(0 < learning_rate <= 100, "learning_rate", learning_rate, remedy)
    for name, decay in decays.items():
        require(0 <= decay < 1, name, decay, "give 0 (the last step only) to below 1")


def require_adaptivity(value: float) -> None:
    """Raise unless this can be added to a root mean square."""
    remedy = "give a number above 0; the paper's is 0.001"
    require(0 < value < math.inf, "adaptivity", value, remedy)
