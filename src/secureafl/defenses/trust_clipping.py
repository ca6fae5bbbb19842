"""Trust clipping: every upload is applied at once, clipped, as far as its client is trusted.

A step is made of the newest upload alone, so it is never stale, and no upload waits. What an upload
may do is limited in three ways:

- distance: it is no further from a moving average of the steps, the *centre*, than the median
  client's uploads usually are, nor than its last upload was long. What is usual grows slowly.
  Nobody moves the model before more than half of the clients are known;
- trust (`core.peers`, `core.neighbours` and `core.curvature`): a client whose history nobody else
  can explain counts less, and so does one of an unusually large group that agrees, or of several
  that differ in one direction from clients that are like them, or among few one that says the same
  time after time; a client whose uploads change against the curvature of a loss, as reversed
  gradients do, or of which clipping leaves far less than of others', does not count;
- pace: a client earns its steps while others upload. It may be half as fast again as the average
  client; what it uploads beyond that counts in part or not at all.

Steps warm up: they are shortened until the median client has uploaded a few times, since nobody can
be judged before.

Weights are not shared out among the others: where trust is lost, steps become shorter, down to half
of their length. Trust is computed from sketches, so the server keeps a few thousand numbers per
client however large the model is; many clients are judged in panels. No root data, no number of
attackers to guess.

The SecureAFL project, "Robustness: where the published rule breaks", docs/robustness.md, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.clipping import Records, Standing, full_standing, no_records
from secureafl.core.errors import require
from secureafl.core.panels import Panels, draw_panels, panel_size
from secureafl.core.peers import FEWEST
from secureafl.core.trees import name_tensors
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.operations import (
    call_panel,
    judge_clients,
    remember_upload,
    take_step,
)
from secureafl.linalg.sketch import Sketch, draw_sketch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_TURNS = 2  # how often a client is judged while every client uploads once: histories change slowly


class State(NamedTuple):
    """What survives an arrival."""

    sketch: Sketch
    panels: Panels
    centre: Float[Tensor, " d"]  # moving average of clipped uploads, by weight
    records: Records
    standing: Standing


@dataclass(frozen=True)
class TrustClipping:
    """w <- w - eta t (c + a min(1, m / ||a||)), with t the client's trust and c the centre.

    How far an upload g is from the centre is a = g - c, and m is the median client's usual ||a||.
    """

    momentum: float = 0.95  # of update histories, per upload
    sketch_size: int = 4096  # numbers that are kept of an upload
    neighbours: bool = True  # whether `core.neighbours` judges too, where there are enough clients

    def __post_init__(self) -> None:
        remedy = "give 0 (only the last upload) to below 1"
        require(0 <= self.momentum < 1, "momentum", self.momentum, remedy)
        require(self.sketch_size >= 1, "sketch_size", self.sketch_size, "give 1 number or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        return State(
            draw_sketch(weights.numel(), self.sketch_size, weights.device),
            draw_panels(num_clients, weights.device),
            torch.zeros_like(weights),
            no_records(num_clients, self.sketch_size, weights),
            full_standing(num_clients, weights.device),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        sketch, panels, centre, records, standing = state
        position = remember_upload(records, sketch, centre, arrival, self.momentum)
        every = max(1, panel_size(records.known.numel()) // _TURNS)
        members, due = call_panel(panels, every)
        neighbours = self.neighbours and len(members) >= FEWEST
        judge_clients(records, standing.trust, members, due, self.momentum, neighbours)
        weights, direction = take_step(records, standing, centre, arrival, position)
        scores = {"weight": weights.trust, "pace": weights.pace}
        bounded = True  # `take_step` saw to it
        return Decision(weights.counts, weights.ready, direction, scores, "trust", bounded), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        for table in name_tensors(state.records, "").values():
            table.index_fill_(0, client.view(1), 0)
        for table in (state.standing.trust, state.standing.earned):
            table.index_fill_(0, client.view(1), 1)
        return state
