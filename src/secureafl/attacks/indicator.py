"""A mark in an upload that tells its sender, one model later, what the server made of it.

A coordinate that hardly matters to the upload gets a value far above the usual. If the next model
this client receives has moved there by the learning rate times that value, the upload was applied.
What others moved is read off coordinates that matter as little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

UNREAD, REJECTED, CLIPPED, ACCEPTED = range(4)

_NEIGHBOURS = 4  # coordinates that tell what others moved
_UNMOVED = 1e-4  # shares of a mark up to this count as none of it
_WHOLE = 0.8  # of the largest share any attacker found lately
_BLURRED = 0.5  # of a mark; where others moved that much, it cannot be read


class Marks(NamedTuple):
    """Row m is about the last upload of attacker m."""

    candidates: Int[Tensor, " places"]  # coordinates that may be marked; fixed for the run
    places: Int[Tensor, "attackers k"]  # the marked coordinate, then its neighbours
    values: Float[Tensor, " attackers"]  # what was written there; 0: nothing yet
    before: Float[Tensor, "attackers k"]  # the model that was given to it, at the places
    sent: Int[Tensor, " attackers"]  # the round of the upload
    shares: Float[Tensor, " attackers"]  # of the mark that were found in the model
    status: Int[Tensor, " attackers"]


def no_marks(candidates: Int[Tensor, " places"], attackers: int) -> Marks:
    """Nobody has uploaded; candidates are dealt out, so that no two attackers mark the same."""
    width = max(1, min(1 + _NEIGHBOURS, len(candidates) // max(attackers, 1)))
    whole = candidates.new_zeros(attackers)
    exact = torch.zeros(attackers, dtype=torch.float64, device=candidates.device)
    places = candidates.new_zeros(attackers, width)
    return Marks(candidates, places, exact, places.double(), whole, exact.clone(), whole.clone())


def read(
    marks: Marks,
    attacker_index: int,
    base: Float[Tensor, " d"],
    version: Int[Tensor, ""],
    rate: float,
) -> Marks:
    """What became of the attacker's last upload, told from the model it was given since."""
    moved = base[marks.places[attacker_index]].double() - marks.before[attacker_index]
    mark = rate * marks.values[attacker_index]
    others = moved[1:]
    drift = others.sum() / max(len(others), 1)
    share = (moved[0] - drift) / -mark
    rounding = torch.finfo(base.dtype).eps * marks.before[attacker_index, :1].abs()
    blur = torch.cat([(others - drift).abs(), rounding]).amax() / mark
    slack = blur.clamp(min=_UNMOVED)
    # A model as old as the upload, or older, knows nothing of it.
    readable = (version > marks.sent[attacker_index]) & (mark > 0) & (blur <= _BLURRED)
    readable = readable & (share >= -slack) & (share <= 1 + slack)
    marks.shares[attacker_index] = torch.where(readable, share, 0)
    found = torch.where(share >= _WHOLE * marks.shares.amax(), ACCEPTED, CLIPPED)
    found = torch.where(share <= slack, REJECTED, found)
    marks.status[attacker_index] = torch.where(readable, found, UNREAD)
    return marks


def own_candidates(marks: Marks, attacker_index: int) -> Int[Tensor, " own"]:
    """The coordinates that this attacker may mark."""
    stride = min(len(marks.status), len(marks.candidates))
    return marks.candidates[attacker_index % stride :: stride]


def write(
    marks: Marks,
    attacker_index: int,
    importance: Float[Tensor, " own"],
    base: Float[Tensor, " d"],
    value: Float[Tensor, ""],
    now: int,
) -> Marks:
    """Note a mark that is sent with an upload now, on the least important of the candidates."""
    own, width = own_candidates(marks, attacker_index), marks.places.shape[1]
    # Not twice the same: the last mark may arrive late.
    importance = torch.where(own == marks.places[attacker_index, 0], torch.inf, importance)
    places = own[importance.sort(stable=True).indices[:width]]
    marks.places[attacker_index] = places
    marks.values[attacker_index] = value
    marks.before[attacker_index] = base[places]
    marks.sent[attacker_index] = now
    return marks


def marked(upload: Float[Tensor, " d"], marks: Marks, attacker_index: int) -> Float[Tensor, " d"]:
    """The upload with the attacker's mark on it."""
    value = marks.values[attacker_index : attacker_index + 1].to(upload.dtype)
    return upload.index_copy(0, marks.places[attacker_index, :1], value)
