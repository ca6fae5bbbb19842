"""L-BFGS: a silent client's last gradient, carried to the current model along its curvature.

g_hat_k = g_k + B_k (w - w_k), where B_k is the BFGS matrix of the client's last pairs
s = difference of base models, y = difference of gradients, both from real uploads. (Pairs made
from the estimates themselves, as the paper can be read, teach B nothing.)

Curvature from mini-batches is mostly noise, and without safeguards training diverges, attacked or
not. So a pair is kept only if its curvature s'y / s's is clearly positive, and the correction is
no longer than a share of g_k. Setting `min_curvature = -inf` and `max_correction = inf` gives the
bare method.

Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their use in limited memory
methods", Mathematical Programming 63, 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.vectors import norm, row, set_row
from secureafl.kernels.bfgs import bfgs_product

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Pairs(NamedTuple):
    """Each client's last pairs, oldest first; the last `count` places are filled."""

    steps: Float[Tensor, "n m d"]  # s
    changes: Float[Tensor, "n m d"]  # y
    step_gram: Float[Tensor, "n m m"]  # S'S, float64, so that no round recomputes it
    cross_gram: Float[Tensor, "n m m"]  # S'Y
    count: Int[Tensor, " n"]


@dataclass(frozen=True)
class Lbfgs:
    """The paper's estimator with its safeguards."""

    buffer_size: int = 3  # epsilon
    min_curvature: float = 1e-3  # a pair needs s'y > this * s's
    max_correction: float = 0.5  # ||B (w - w_k)|| <= this * ||g_k||

    def __post_init__(self) -> None:
        require(self.buffer_size >= 1, "buffer_size", self.buffer_size, "give 1 or more pairs")
        cap = self.max_correction
        require(cap >= 0, "max_correction", cap, "give 0 or more (inf: no cap)")

    def init(self, num_clients, weights):
        rows = (num_clients, self.buffer_size, weights.numel())
        gram = (num_clients, self.buffer_size, self.buffer_size)
        return Pairs(
            weights.new_zeros(rows),
            weights.new_zeros(rows),
            weights.new_zeros(gram, dtype=torch.float64),
            weights.new_zeros(gram, dtype=torch.float64),
            torch.zeros(num_clients, dtype=torch.int64, device=weights.device),
        )

    def remember(self, memory, before, arrival, keep):
        client = arrival.client
        step = arrival.base - row(before.base, client)
        change = arrival.gradient - row(before.gradient, client)
        length = step.double() @ step.double()
        curved = change.double() @ step.double() > self.min_curvature * length
        keep = keep & row(before.known, client) & (length > 0) & curved
        steps = _appended(row(memory.steps, client), step)
        changes = _appended(row(memory.changes, client), change)
        set_row(memory.steps, client, steps, keep)
        set_row(memory.changes, client, changes, keep)
        set_row(memory.step_gram, client, steps.double() @ steps.double().T, keep)
        set_row(memory.cross_gram, client, steps.double() @ changes.double().T, keep)
        count = (row(memory.count, client) + 1).clamp(max=self.buffer_size)
        set_row(memory.count, client, count, keep)
        return memory

    def estimate(self, memory, uploads, weights):
        correction = bfgs_product(*memory, vector=weights - uploads.base)
        longest = self.max_correction * norm(uploads.gradient)
        length = norm(correction)
        scale = torch.where(length > longest, longest / length, 1.0)
        return correction.mul_(scale[:, None].to(correction.dtype)).add_(uploads.gradient)


def _appended(rows: Tensor, newest: Tensor) -> Tensor:
    return torch.cat([rows[1:], newest[None]])
