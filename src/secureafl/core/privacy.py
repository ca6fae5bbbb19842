"""Differential privacy of what a client uploads: clipping, Gaussian noise, and what that is worth.

One release is Gaussian noise on a sum that one record (or, with `unit = "upload"`, everything the
client holds) can move by at most twice the clipping norm. Many such releases, each of which may
depend on the earlier ones, are together exactly one Gaussian mechanism, so epsilon has no slack
and needs no accountant. Nothing is claimed for the sampling of batches: that would need each
record to be drawn independently each time, and clients pass over their samples instead.

Balle, Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018; Dong, Roth,
Su, "Gaussian differential privacy", Journal of the Royal Statistical Society B 84, 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from secureafl.core.errors import require
from secureafl.core.random import random_normal
from secureafl.core.setting_types import settle_types
from secureafl.linalg.vectors import exact_norm

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Privacy:
    """What honest clients do before they upload; nothing while `clip` is 0."""

    clip: float = 0.0  # norm that what is protected is cut to; 0: neither clipping nor noise
    noise: float = 0.0  # standard deviation of the noise in each coordinate, in units of `clip`
    delta: float = 1e-5  # epsilon is reported for this one
    # "example": each sample's gradient is cut, and one sample is protected. "upload": the upload
    # is cut, and all that the client holds is protected, which takes far more noise.
    unit: Literal["example", "upload"] = "example"

    def __post_init__(self) -> None:
        settle_types(self)
        require(0 <= self.clip < math.inf, "clip", self.clip, "give 0 (off) or a norm")
        require(0 <= self.noise < math.inf, "noise", self.noise, "give 0 (none) or more")
        remedy = "give clip, a norm above 0: noise without it protects nothing"
        require(not self.noise or self.clip > 0, "noise", self.noise, remedy)
        require(0 < self.delta < 0.5, "delta", self.delta, "give a number above 0, below 0.5")

    @property
    def off(self) -> bool:
        """Whether uploads are left as they are."""
        return not self.clip

    def release(self, rows: Float[Tensor, "m d"], draw: Int[Tensor, ""]) -> Float[Tensor, " d"]:
        """Sum of the rows, each cut to the norm `clip`, with noise; `draw` is its number.

        A row that is not finite counts as zero: or it alone could change everything.
        """
        lengths = exact_norm(rows)[:, None]
        factors = torch.where(lengths > self.clip, self.clip / lengths, 1.0)
        cut = torch.where(lengths.isfinite(), rows * factors.to(rows.dtype), 0)
        if not self.noise:
            return cut.sum(dim=0)
        noise = self.clip * self.noise * random_normal(draw, rows.shape[1])
        return (cut.sum(dim=0, dtype=torch.float64) + noise).to(rows.dtype)

    def epsilon(self, squares: float) -> float:
        """What protects a record from releases whose sum it was in m times each.

        Args:
            squares: The sum of all m^2. For `unit = "upload"` it is the number of releases.
        """
        if not squares:
            return 0.0
        # Replaced by another, each of the m copies moves the sum by 2 clip at most.
        return (
            epsilon_of(2 * math.sqrt(squares) / self.noise, self.delta) if self.noise else math.inf
        )


def epsilon_of(mu: float, delta: float) -> float:
    """The epsilon at `delta` of telling N(0, 1) from N(mu, 1), both ways."""
    low, high = 0.0, 1.0
    if delta_of(mu, mu * mu / 2) > delta:
        low = mu * mu / 2  # below it the formula may overflow
    while delta_of(mu, low + high) > delta:
        high *= 2
    for _ in range(60):
        middle = high / 2
        low, high = (low + middle, middle) if delta_of(mu, low + middle) > delta else (low, middle)
    return low + high


def delta_of(mu: float, epsilon: float) -> float:
    """The delta that goes with an epsilon."""
    below, above = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # Phi(-below) - exp(epsilon) Phi(-above), with the common factor taken out.
    tails = torch.special.erfcx(torch.tensor([below, above], dtype=torch.float64) / math.sqrt(2))
    return math.exp(-below * below / 2) / 2 * float(tails[0] - tails[1])
