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

from secureafl.core.errors import require
from secureafl.core.trees import name_tensors
from secureafl.core.trust import Doubts, Notes, no_notes
from secureafl.core.types import Decision
from secureafl.core.uploads import Uploads, no_uploads, without_uploads
from secureafl.kernels.operations import compare, remember, take_note, weigh

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

_COUNTED = 0.5  # of a typical client's weight: with less, an upload is told as not accepted


class State(NamedTuple):
    """What survives an arrival. Row k is client k's."""

    sent: Uploads  # the last upload as it came, and the model under it
    word: Float[Tensor, "n d"]  # what the client is taken to say
    record: Float[Tensor, "n d"]  # what it said over a longer time, by which it is judged
    notes: Notes


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
        notes = no_notes(num_clients, weights.device)
        return State(no_uploads(num_clients, weights), rows, rows.clone(), notes)

    def step(self, state, arrival, server):
        sent, word, record, notes = state
        client, news = arrival.client, compare(sent, arrival)
        limits = (self.clip_norm, self.shorten, self.record_memory)
        scale = take_note(notes, sent.known, client, news, *limits)
        memories = (self.word_memory, self.record_memory)
        mine = remember(sent, word, record, arrival, news.known, scale, *memories)
        found = weigh(notes, sent.known, client, record @ mine, self._doubts)
        accepted, ready = found.own >= _COUNTED, found.total > 0
        direction, scores = found.shares @ word, {"weight": found.own}
        # A mean of uploads is not longer than the longest.
        return Decision(accepted, ready, direction, scores, "trust", bounded=True), state

    def forget(self, state, client):
        for rows in name_tensors((state.word, state.record, state.notes), "").values():
            rows.index_fill_(0, client.view(1), 0)
        # The others' products with it stay until its next upload; nobody looks at them.
        return state._replace(sent=without_uploads(state.sent, client))

    @property
    def _doubts(self) -> Doubts:
        settings = (self.fading, self.crowding, self.approval, self.constancy, self.bending)
        return Doubts(self.record_memory, *settings)
