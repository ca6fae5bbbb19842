"""A defence of your own: refuse uploads much longer than those accepted so far.

Try it from this folder:

    secureafl run --defense my_defense:NormBound --set defense.factor=3 --attack gaussian \
        --rounds 300 --clients 10 --data-dir embedded
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from secureafl import Arrival, Decision, ServerView, norm


class State(NamedTuple):
    """What survives an arrival: a tuple of tensors."""

    typical: Tensor  # running mean of accepted norms
    count: Tensor


@dataclass(frozen=True)
class NormBound:
    """Accept an upload if its norm is at most `factor` times the typical one."""

    factor: float = 2.0
    first_bound: float = 10.0  # before anything was accepted

    def init(self, num_clients: int, weights: Tensor) -> State:
        return State(weights.new_zeros(()).double(), weights.new_zeros(()).double())

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        length = norm(arrival.gradient)
        bound = torch.where(state.count > 0, self.factor * state.typical, self.first_bound)
        accepted = length <= bound
        count = state.count + accepted
        moved = state.typical + (length - state.typical) / count.clamp(min=1)
        state = State(torch.where(accepted, moved, state.typical), count)
        scores = {"norm": length, "bound": bound}
        return Decision(accepted, accepted, arrival.gradient, scores, "norm"), state
