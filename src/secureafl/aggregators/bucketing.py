"""Bucketing: average the clients in small random groups, then a robust rule over the groups.

Averages of a few clients differ less than clients do, so a rule that would mistake an unusual
honest client for an attacker fares better on them. An attacker spoils its whole group: the inner
rule must stand `size` times the share of attackers.

Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing",
ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from secureafl.aggregators.wrapper import Wrapper
from secureafl.core.errors import require
from secureafl.core.random import random_bits
from secureafl.core.rules import apply_rule
from secureafl.linalg.rows import masked

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives a call."""

    draws: Int[Tensor, ""]
    inner: Any


@dataclass(frozen=True)
class Bucketing(Wrapper):
    """The inner rule over means of randomly drawn groups; the last group may be smaller."""

    size: int = 2  # s, clients per group

    def __post_init__(self) -> None:
        require(self.size >= 1, "size", self.size, "give 1 client or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        draws = torch.zeros((), dtype=torch.int64, device=weights.device)
        return State(draws, self.inner.init(-(-num_clients // self.size), weights))

    def aggregate_with_root(
        self,
        state: State,
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        root_gradient: Float[Tensor, " d"] | None,
    ) -> tuple[Float[Tensor, " d"], State]:
        groups, filled = self._groups(state.draws, values, present)
        vector, inner = apply_rule(self.inner, state.inner, groups, filled, root_gradient)
        return vector, State(state.draws + 1, inner)

    def _groups(
        self, draw: Int[Tensor, ""], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, "groups d"], Bool[Tensor, " groups"]]:
        """Means of the clients present in random order, `size` at a time."""
        count, (clients, width) = present.sum(), values.shape
        groups = -(-clients // self.size)
        # Two bits short, so that no client present is mistaken for an absent one.
        keys = torch.where(present, random_bits(draw, clients) >> 2, torch.iinfo(torch.int64).max)
        shuffled = masked(values, present)[keys.argsort(stable=True)]
        missing = groups * self.size - clients
        shuffled = torch.nn.functional.pad(shuffled, (0, 0, 0, missing))
        first = torch.arange(groups, device=values.device) * self.size
        members = (count - first).clamp(min=1, max=self.size)[:, None]
        # Divide before adding: a sum of large updates must not overflow.
        means = (shuffled.view(groups, self.size, width) / members[:, None]).sum(dim=1)
        return means, first < count
