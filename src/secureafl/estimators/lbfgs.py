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
from secureafl.core.vectors import row, set_row
from secureafl.kernels.bfgs import Products, bfgs_product
from secureafl.kernels.tiles import BASE, GRADIENT, OWN

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from secureafl.core.types import Inner


class Notes(NamedTuple):
    """How many pairs of each client are filled: the last so many, oldest first."""

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

    @property
    def slots(self) -> int:
        return 2 * self.buffer_size  # steps s, then changes y

    def init(self, num_clients, weights):
        return Notes(torch.zeros(num_clients, dtype=torch.int64, device=weights.device))

    def remember(self, notes, mine, arrival, keep):
        step = arrival.base - mine.base
        change = arrival.gradient - mine.gradient
        length = step.double() @ step.double()
        curved = change.double() @ step.double() > self.min_curvature * length
        pair = mine.known & (length > 0) & curved
        steps, changes = mine.vectors.chunk(2)
        appended = torch.cat([steps[1:], step[None], changes[1:], change[None]])
        count = (row(notes.count, arrival.client) + 1).clamp(max=self.buffer_size)
        set_row(notes.count, arrival.client, count, pair & keep)
        return torch.where(pair, appended, mine.vectors), notes

    def shares(self, notes, inner):
        product = bfgs_product(self._products(inner), notes.count)
        longest = self.max_correction * inner.vectors[:, GRADIENT, GRADIENT].sqrt()
        scale = torch.where(product.length > longest, longest / product.length, 1.0)[:, None]
        correction = [product.of_vector[:, None], product.of_steps, product.of_changes]
        return torch.cat([torch.ones_like(scale), scale * torch.cat(correction, dim=1)], dim=1)

    def _products(self, inner: Inner) -> Products:
        """Inner products of the pairs, and with v = w - base."""
        steps = slice(OWN, OWN + self.buffer_size)
        changes = slice(steps.stop, OWN + self.slots)
        gram = inner.vectors
        along = inner.model - gram[:, BASE]
        squared = inner.squared - 2 * inner.model[:, BASE] + gram[:, BASE, BASE]
        return Products(
            steps=gram[:, steps, steps],
            cross=gram[:, steps, changes],
            changes=gram[:, changes, changes],
            along_steps=along[:, steps],
            along_changes=along[:, changes],
            squared=squared.clamp(min=0),
        )
