"""BASGD: uploads are averaged in B buffers, and a robust rule over the buffers makes the step.

Each client always writes to the same buffer, so b malicious clients spoil at most b of them. When
no buffer is empty, the median or trimmed mean of their averages is the step, and all are emptied.
A round is an upload here as everywhere; with uniform arrivals a step takes about B (1 + 1/2 + ...
+ 1/B) of them. The result of a run holds both numbers.

Yang, Li, "BASGD: buffered asynchronous SGD for Byzantine learning", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.shares import require_minority, whole_clients
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.order import order_mean
from secureafl.kernels.rows import set_row
from secureafl.linalg.vectors import computed_if, row

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class State(NamedTuple):
    """What survives an arrival."""

    mean: Float[Tensor, "B d"]  # h_b, of the uploads since the last step
    count: Int[Tensor, " B"]  # N_b
    trimmed: Int[Tensor, ""]  # q, buffers dropped at each end; does not change


@dataclass(frozen=True)
class Basgd:
    """Client i writes to buffer i mod B."""

    malicious_share: float = 0.2  # b / n, of the clients
    num_buffers: int = 0  # B; 0: 2b + 1, but at most half the clients
    rule: Literal["median", "trimmed_mean"] = "median"  # trimmed_mean drops b at each end

    needs_malicious = True
    buffering = True

    def __post_init__(self) -> None:
        require_minority("malicious_share", self.malicious_share)
        require(self.num_buffers >= 0, "num_buffers", self.num_buffers, "give 0 (2b + 1) or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        remedy = f"give at most the number of clients, {num_clients}, or some stay empty"
        require(self.num_buffers <= num_clients, "num_buffers", self.num_buffers, remedy)
        malicious = whole_clients(self.malicious_share, num_clients)
        buffers = self.num_buffers or max(1, min(2 * malicious + 1, num_clients // 2))
        middle = (buffers - 1) // 2  # what the median drops at each end
        trimmed = middle if self.rule == "median" else min(malicious, middle)
        return State(
            weights.new_zeros(buffers, weights.numel()),
            torch.zeros(buffers, dtype=torch.int64, device=weights.device),
            torch.tensor(trimmed, device=weights.device),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        mean, count, trimmed = state
        buffer, always = arrival.client % len(mean), torch.ones_like(count[0], dtype=torch.bool)
        number = row(count, buffer) + 1
        before = row(mean, buffer)
        moved = before + (arrival.gradient - before) / number
        # What an emptied buffer held must leave no trace, not even by rounding.
        set_row(mean, buffer, torch.where(number == 1, arrival.gradient, moved), always)
        set_row(count, buffer, number, always)
        ready = (count > 0).all()
        last, full = len(mean) - 1 - trimmed, torch.ones_like(count, dtype=torch.bool)
        direction = computed_if(
            ready,
            lambda: order_mean(mean, full, trimmed, last),
            torch.zeros_like(arrival.gradient),
        )
        scores = {"filled": (count > 0).sum()}
        kept = State(mean, torch.where(ready, 0, count), trimmed)
        return Decision(always, ready, direction, scores, ""), kept
