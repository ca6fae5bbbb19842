"""Trust clipping: every upload is applied at once, clipped, as far as its client is trusted.

A step is made of the newest upload alone, so it is never stale, and no upload waits. What an upload
may do is limited in three ways:

- length: it is no longer than the median client's last upload. Clients that were not heard of yet
  count as silent there, so nobody moves the model before half of them are known;
- trust (`core.peers`, and curvature as in `core.trust`): a client whose history nobody else can
  explain counts less, and so does one of an unusually large group that agrees; a client whose
  uploads change against the curvature of a loss, as reversed gradients do, or are cut to next to
  nothing time after time, does not count;
- pace: a client earns its steps while others upload. It may be half as fast again as the average
  client; what it uploads beyond that counts in part or not at all.

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

from secureafl.core.errors import require
from secureafl.core.panels import Panels, deal_anew, draw_panels, panel_size, sitting
from secureafl.core.trees import name_tensors
from secureafl.core.trust import (
    TINY,
    CurvatureStats,
    curvature_weights,
    lower_median,
    no_curvature,
    rise,
    update_curvature,
)
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.kernels.operations import peer_weights
from secureafl.linalg.sketch import Sketch, draw_sketch, sketched
from secureafl.linalg.vectors import computed_if, exact_norm, exactly_scaled, row, set_row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_COUNTED = 0.5  # of a typical client's weight: with less, an upload is reported as not accepted
_PACE, _SAVED = 1.5, 5.0  # steps earned while each other client uploads once; the most that is kept
_RATE, _SHORTEST = 0.01, 0.5  # of the mean trust, per step; and what it is at least taken for
_NEWS = 0.25  # share of a judgement in a client's trust: who sits with whom is chance
_CREDIT = 2.0  # standard errors that a client's curvature is given: innocent until shown otherwise
_CUT, _SPARED = 0.1, 0.25  # of uploads that clipping leaves on average: no weight, full weight
_TURNS = 10  # how often a client is judged while every client uploads once: histories change slowly


class State(NamedTuple):
    """What survives an arrival. Row k is client k's; sketches are rows of k numbers."""

    sketch: Sketch
    panels: Panels
    known: Bool[Tensor, " n"]
    norms: Float[Tensor, " n"]  # of the last uploads, before clipping
    uploads: Float[Tensor, " n"]  # made so far, float64
    last: Float[Tensor, "n k"]  # the last clipped upload, sketched
    base: Float[Tensor, "n k"]  # the model under it, sketched
    history: Float[Tensor, "n k"]  # moving average of clipped uploads, sketched
    kept: Float[Tensor, " n"]  # moving average of the share of an upload that clipping leaves
    curvature: CurvatureStats
    trust: Float[Tensor, " n"]  # moving average of judgements; 1 before a client's first
    earned: Float[Tensor, " n"]  # steps a client may make now
    mean_trust: Float[Tensor, ""]  # moving average over steps
    arrivals: Int[Tensor, ""]


@dataclass(frozen=True)
class TrustClipping:
    """w <- w - eta c g min(1, m / ||g||), where c is the client's trust and m the median norm."""

    momentum: float = 0.95  # of update histories, per upload
    sketch_size: int = 4096  # numbers that are kept of an upload

    def __post_init__(self) -> None:
        remedy = "give 0 (only the last upload) to below 1"
        require(0 <= self.momentum < 1, "momentum", self.momentum, remedy)
        require(self.sketch_size >= 1, "sketch_size", self.sketch_size, "give 1 number or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        rows = weights.new_zeros(num_clients, min(self.sketch_size, weights.numel()))
        zeros = torch.zeros(num_clients, dtype=torch.float64, device=weights.device)
        return State(
            draw_sketch(weights.numel(), self.sketch_size, weights.device),
            draw_panels(num_clients, weights.device),
            torch.zeros_like(zeros, dtype=torch.bool),
            zeros,
            zeros.clone(),
            rows,
            rows.clone(),
            rows.clone(),
            zeros.clone(),
            no_curvature(num_clients, weights.device),
            torch.ones_like(zeros),
            torch.ones_like(zeros),
            zeros.new_ones(()),
            torch.zeros((), dtype=torch.int64, device=weights.device),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        client, norm = arrival.client, exact_norm(arrival.gradient)
        yes = torch.ones_like(state.known[0])
        set_row(state.norms, client, norm, yes)
        known = state.known.index_fill(0, client.view(1), True)
        self._remember(state, arrival, known, norm)
        state.known.copy_(known)
        self._judge(state)
        trust, pace = row(state.trust, client), _spend_pace(state, client)
        weight = trust * pace
        # By pace: who uploads often and may not spend must not make the others' steps longer.
        state.mean_trust.lerp_(trust, _RATE * pace)
        radius, stretch = _radius(state)
        factor = weight * stretch / state.mean_trust.clamp(min=_SHORTEST)
        length = torch.minimum(norm, radius) / norm.clamp(min=TINY)
        direction = exactly_scaled(arrival.gradient, factor * length)
        scores = {"weight": trust, "pace": pace}
        ready = (weight > 0) & (radius > 0)
        return Decision(weight >= _COUNTED, ready, direction, scores, "trust"), state

    def _remember(
        self, state: State, arrival: Arrival, known: Bool[Tensor, " n"], norm: Float[Tensor, ""]
    ) -> None:
        """Put an upload into the client's rows, in place; `state.known` is still as before it."""
        client, yes = arrival.client, torch.ones_like(known[0])
        length = torch.minimum(norm, lower_median(state.norms, known)) / norm.clamp(min=TINY)
        clipped = exactly_scaled(arrival.gradient, length)
        upload = sketched(state.sketch, clipped, self.sketch_size)
        base = sketched(state.sketch, arrival.base, self.sketch_size)
        self._compare(state, client, upload, base)
        uploads = row(state.uploads, client)
        # A plain mean of the first uploads, so that the very first does not count for long.
        before = (uploads / (uploads + 1)).clamp(max=self.momentum)
        history = torch.lerp(upload, row(state.history, client), before.to(upload.dtype))
        kept = torch.lerp(torch.where(norm > 0, length, 1), row(state.kept, client), before)
        for rows, value in zip(
            (state.last, state.base, state.history, state.kept, state.uploads),
            (upload, base, history, kept, uploads + 1),
            strict=True,
        ):
            set_row(rows, client, value, yes)

    def _compare(
        self,
        state: State,
        client: Int[Tensor, ""],
        upload: Float[Tensor, " k"],
        base: Float[Tensor, " k"],
    ) -> None:
        """Add the cosine between the model's move and the upload's change to the statistics."""
        moved = (base - row(state.base, client)).double()
        changed = (upload - row(state.last, client)).double()
        lengths = exact_norm(moved) * exact_norm(changed)
        seen = row(state.known, client) & (lengths > 0)
        cosine = moved @ changed / torch.where(seen, lengths, 1)
        update_curvature(state.curvature, client, cosine, seen, self.momentum)

    def _judge(self, state: State) -> None:
        """Bring the trust in one panel's clients up to date, in place, if that is due."""
        every = max(1, panel_size(len(state.known)) // _TURNS)
        turn, due = state.arrivals // every, state.arrivals % every == 0
        members = sitting(state.panels, turn)
        found = computed_if(due, lambda: self._trust(state, members, due), state.trust)
        state.trust.copy_(found)
        deal_anew(state.panels, turn, due)
        state.arrivals.add_(1)

    def _trust(
        self, state: State, members: Int[Tensor, " p"], due: Bool[Tensor, ""]
    ) -> Float[Tensor, " n"]:
        weights = curvature_weights(state.curvature, self.momentum, state.known, _CREDIT)
        weights = weights * rise(state.kept, _CUT, _SPARED)
        # Who was seen through is left out: it must not explain others, nor make their groups large.
        left = state.known & (weights > 0)
        by_peers = peer_weights(state.history, members, left, due)
        weights = weights.index_select(0, members) * by_peers
        weights = torch.lerp(state.trust.index_select(0, members), weights, _NEWS)
        weights = torch.where(state.known.index_select(0, members), weights, 1)
        return state.trust.index_copy(0, members, weights)

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        _, _, *rows, trust, earned, _, _ = state
        for table in name_tensors(rows, "").values():
            table.index_fill_(0, client.view(1), 0)
        for table in (trust, earned):
            table.index_fill_(0, client.view(1), 1)
        return state


def _spend_pace(state: State, client: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """What the client may spend on this step, at most 1; the others earn, in place."""
    if len(state.earned) == 1:
        return state.earned[0].clone()  # nobody else uploads, so it could never earn a step
    saved = row(state.earned, client)
    spent = saved.clamp(max=1)
    others = (state.known.sum() - 1).clamp(min=1)
    state.earned.add_(_PACE / others).clamp_(max=_SAVED)
    set_row(state.earned, client, saved - spent, torch.ones_like(state.known[0]))
    return spent


def _radius(state: State) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The norm uploads are clipped to, and by how much steps are stretched in return.

    The stretch keeps the mean length of a step where clipping shortens honest uploads: the mean of
    norms up to two medians over that of norms up to one.
    """
    norms = torch.where(state.known, state.norms, 0)
    radius = norms.sort().values[(len(norms) - 1) // 2]
    longer, shorter = (torch.minimum(norms, k * radius).sum() for k in (2, 1))
    return radius, torch.where(shorter > 0, longer / shorter.clamp(min=TINY), 1)
