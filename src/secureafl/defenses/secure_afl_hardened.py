"""SecureAFL hardened: everybody's last word, weighed by whom it stands with and how it bends.

As in SecureAFL the server remembers what each client said and steps, at every arrival, along what
all of them say; nobody is waited for. But the published filter compares a client with itself, so
it cannot see a consistent liar, and a coordinate-wise median loses what only a few clients know.
Here the step is a mean, and trust decides the weights (`core.trust`):

- nobody speaks louder than the median client;
- what was said long ago counts less, since it answers a model that is gone;
- a crowd that says the same thing, as colluders do, counts hardly more than a usual crowd;
- who is contradicted more than others counts less, and so does who says something else every time;
- the loss of an honest client bends upwards along the way the model goes. The published filter
  asks how much an upload changed for the model's move; this asks in which direction.

No trusted data, no number of attackers to guess.

The SecureAFL project, "Standing where the published rule falls", docs/robustness.md, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.trust import (
    Bends,
    Constancy,
    bending,
    constant,
    no_bends,
    no_constancy,
    with_length,
)
from secureafl.core.types import Decision
from secureafl.core.uploads import Uploads, no_uploads, with_upload, without_uploads
from secureafl.core.vectors import exactly_scaled, row, set_row
from secureafl.kernels.operations import compare, standing, take_note

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.types import Arrival, News

_FEW = 10  # clients
_COUNTED = 0.5  # of a typical client's weight: with less, an upload is told as not accepted


class State(NamedTuple):
    """What survives an arrival. Row k is client k's."""

    sent: Uploads  # the last upload as it came, and the model under it
    lengths: Float[Tensor, " n"]  # of these
    word: Float[Tensor, "n d"]  # what the client is taken to say
    record: Float[Tensor, "n d"]  # what it said over a longer time, by which it is judged
    gram: Float[Tensor, "n n"]  # inner products of the records
    constancy: Constancy
    bends: Bends
    fresh: Float[Tensor, " n"]  # what the time since each word was said leaves of it


@dataclass(frozen=True)
class SecureAflHardened:
    """Mean of everybody's word, weighed by trust. Every ingredient can be switched off."""

    clip_norm: float = 50.0  # G, for a client's first upload
    shorten: bool = True  # uploads longer than the clients' median, to that
    word_memory: float = 0.5  # what a client's word keeps of itself at each of its uploads
    record_memory: float = 0.95  # the same of its record
    fading: float = 0.8  # what a word keeps of its weight at each arrival; 1: all
    crowding: float = 4.0  # how sharply a crowd loses weight; 0: not at all
    approval: float = 4.0  # how sharply a contradicted client does; 0: not at all
    constancy: bool = True  # whether a client must say something, not just make noise
    bending: bool = True  # whether the bend of a client's loss counts

    def __post_init__(self) -> None:
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "give a norm above 0")
        for name in ("word_memory", "record_memory"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "give 0 (only the last upload) to below 1")
        require(0 < self.fading <= 1, "fading", self.fading, "give a share above 0, at most 1")
        for name in ("crowding", "approval"):
            value = getattr(self, name)
            require(0 <= value <= 64, name, value, "give 0 (off) to 64")

    def init(self, num_clients, weights):
        rows = weights.new_zeros(num_clients, weights.numel())
        exact = {"dtype": torch.float64, "device": weights.device}
        return State(
            no_uploads(num_clients, weights),
            torch.zeros(num_clients, **exact),
            rows,
            rows.clone(),
            torch.zeros(num_clients, num_clients, **exact),
            no_constancy(num_clients, weights.device),
            no_bends(num_clients, weights.device),
            torch.zeros(num_clients, **exact),
        )

    def step(self, state, arrival, server):
        news = compare(state.sent, arrival)
        known = with_upload(state.sent, arrival).known
        numbers = (state.lengths, state.bends, known)
        limits = (self.clip_norm, self.shorten, self.record_memory)
        scale = take_note(*numbers, arrival.client, news, *limits)
        self._remember(state, arrival, news, scale)
        trusted = self._trust(state, known)
        # An old word answers a model that is gone.
        state.fresh.mul_(self.fading).index_fill_(0, arrival.client.view(1), 1)
        weights = trusted * state.fresh
        total = weights.sum()
        # Of very few clients most could be liars: until more are known, steps are shorter.
        enough = (known.double().sum() / min(_FEW, len(known))).clamp(max=1)
        share = (weights / total.clamp(min=1e-30)) * enough
        direction = share.to(arrival.gradient.dtype) @ state.word
        weight = row(trusted, arrival.client)
        return Decision(
            weight >= _COUNTED, total > 0, direction, {"weight": weight}, "trust"
        ), state

    def forget(self, state, client):
        numbers = (state.lengths, *state.constancy, *state.bends, state.fresh)
        for kind in (state.word, state.record, state.gram, *numbers):
            kind.index_fill_(0, client.view(1), 0)
        # The others' products with it stay until its next upload; nobody looks at them.
        return state._replace(sent=without_uploads(state.sent, client))

    def _trust(self, state: State, known: Tensor) -> Tensor:
        """Each client's weight, from everything that is known of the clients.

        Who only makes noise is left out of all else that is asked: it stands with nobody, and noise
        that moved the model and is gone looks like a loss that bends.
        """
        said = known.to(state.gram.dtype)
        if self.constancy:
            said = said * constant(state.constancy, state.gram.diagonal(), known)
        heard = said > 0
        weights = said * standing(state.gram, heard, self.crowding, self.approval)
        return (
            weights * bending(state.bends, self.record_memory, heard) if self.bending else weights
        )

    def _remember(self, state: State, arrival: Arrival, news: News, scale: Tensor) -> None:
        """Put an upload, as long as it counts, into its client's rows."""
        client, heard, yes = arrival.client, news.known, torch.ones_like(news.known)
        length = news.squared * scale**2
        with_length(state.constancy, client, heard, length, self.record_memory)
        upload = exactly_scaled(arrival.gradient, scale)
        for kind, memory in ((state.word, self.word_memory), (state.record, self.record_memory)):
            kept = memory * heard.to(upload.dtype)
            set_row(kind, client, torch.lerp(upload, row(kind, client), kept), yes)
        products = (state.record @ row(state.record, client)).double()
        state.gram.index_copy_(0, client.view(1), products[None])
        state.gram.index_copy_(1, client.view(1), products[:, None])
