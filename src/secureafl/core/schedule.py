"""How the server's learning rate changes over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from secureafl.core.errors import require
from secureafl.core.setting_types import settle_types

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """A factor for the model's moves, round by round; 1 throughout unless told.

    >>> schedule = secureafl.Schedule(shape="linear", warmup=2).over(6)
    >>> [float(schedule.factor(torch.tensor(now))) for now in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    shape: Literal["constant", "linear", "cosine"] = "constant"  # how it falls
    warmup: int = 0  # rounds in which it rises to 1 first
    rounds: int = 0  # the one in which it has fallen; 0: the last
    final: float = 0.0  # what it falls to

    def __post_init__(self) -> None:
        settle_types(self)
        require(self.warmup >= 0, "warmup", self.warmup, "give 0 (none) or a number of rounds")
        later = self.rounds == 0 or self.rounds > self.warmup
        require(later, "rounds", self.rounds, "give more than warmup, or 0 for those of the run")
        require(0 <= self.final <= 1, "final", self.final, "give a share from 0 to 1")

    def over(self, rounds: int) -> Schedule:
        """This schedule for a run of so many rounds."""
        return self if self.rounds else replace(self, rounds=max(rounds, self.warmup + 1))

    def factor(self, now: Int[Tensor, ""]) -> Float[Tensor, ""]:
        """What the moves of round `now` are multiplied with; `over` says of how many."""
        at = now.double()
        rise = ((at + 1) / max(1, self.warmup)).clamp(max=1)
        if self.shape == "constant":
            return rise
        left = 1 - ((at - self.warmup) / max(1, self.rounds - self.warmup)).clamp(min=0, max=1)
        if self.shape == "cosine":
            left = (1 - torch.cos(math.pi * left)) / 2
        return rise * (self.final + (1 - self.final) * left)
