"""Clients that join late, leave and return: periods of presence, drawn before training.

Times are those of the trace: rounds where arrivals are uniform, typical jobs where they are
event-driven. Periods are exponentially distributed, so two numbers describe them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from secureafl.core.errors import ConfigError, require

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Churn:
    """When clients join and leave; by default all are present from start to end."""

    late: float = 0.0  # share of the clients that are away at first
    stay: float = 0.0  # mean time a client stays; 0: for ever
    away: float = 0.0  # mean time it is away; 0: it never returns

    def __post_init__(self) -> None:
        require(0 <= self.late <= 1, "late", self.late, "give a share from 0 to 1")
        require(self.stay >= 0, "stay", self.stay, "give 0 (for ever) or a mean time")
        require(self.away >= 0, "away", self.away, "give 0 (for ever) or a mean time")
        remedy = "give away, the mean time until such a client joins"
        require(not self.late or self.away > 0, "late", self.late, remedy)

    @property
    def off(self) -> bool:
        """Whether all clients are always present."""
        return not (self.late or self.stay)

    def first_joins(self, num_clients: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
        """Draw the time at which each client joins first."""
        joins = np.zeros(num_clients)
        if self.late:
            late = rng.permutation(num_clients)[: round(self.late * num_clients)]
            joins[late] = rng.exponential(self.away, len(late))
        return joins

    def until_leaving(self, rng: np.random.Generator) -> float:
        """Draw how long a client that has joined stays."""
        return rng.exponential(self.stay) if self.stay else np.inf

    def until_return(self, rng: np.random.Generator) -> float:
        """Draw how long a client that has left is away."""
        return rng.exponential(self.away) if self.away else np.inf

    def nobody_left(self, now: int) -> ConfigError:
        """Return the error for a schedule in which all clients have left for good."""
        remedy = "let them return (away), or stay longer"
        return ConfigError(
            f"churn.stay = {self.stay}: all clients have left by round {now}; {remedy}"
        )
