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
from secureafl.core.types import Arrival, Entry, Inner, SecantProducts
from secureafl.kernels.operations import lbfgs_shares, place_pair

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class Notes(NamedTuple):
    """Pairs each client ever gave; pair number k lies in place k modulo the buffer's size."""

    appended: Int[Tensor, " n"]


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

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Notes:
        return Notes(torch.zeros(num_clients, dtype=torch.int64, device=weights.device))

    def observe(
        self, notes: Notes, secant: SecantProducts, arrival: Arrival, keep: Bool[Tensor, ""]
    ) -> tuple[Entry, Notes]:
        size, bound = self.buffer_size, self.min_curvature
        places, pair = place_pair(notes.appended, arrival.client, secant, keep, size, bound)
        return Entry(places, ("step", "change"), pair), notes

    def forget(self, state: Notes, client: Int[Tensor, ""]) -> Notes:
        return Notes(state.appended.index_fill_(0, client.view(1), 0))

    def shares(self, notes: Notes, inner: Inner) -> Float[Tensor, "n parts"]:
        return lbfgs_shares(inner, notes.appended, self.buffer_size, self.max_correction)
