"""The parts of a composed attack, as plain functions of what its clients see.

Directions are computed in float64: sums of squares of large float32 numbers overflow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from secureafl.linalg.rows import deviation_of, mean_of, median_of
from secureafl.linalg.vectors import exact_norm, row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import AttackerView

Aim = Literal["mean", "sign", "std", "label", "one_class", "model"]
Cover = Literal["own", "private", "fresh", "copy", "copies", "none"]
Length = Literal["median", "longest", "shrinking"]
Timing = Literal["always", "late", "on_off", "early", "moving"]
Collusion = Literal["same", "groups", "sacrificed"]

_MOMENTUM = 0.98  # of the honest mean, per malicious upload
# They scatter the coordinates over groups: with i mod groups each group would have whole columns
# of weight matrices. Products fit 64 bits up to three billion coordinates.
_MULTIPLIER, _PRIME = 2654435761, 1000003


class Honest(NamedTuple):
    """What honest clients trained last."""

    rows: Float[Tensor, "n d"]  # of all clients; those of the others are finite and do not count
    known: Bool[Tensor, " n"]
    mean: Float[Tensor, " d"]


def honest_clients(view: AttackerView) -> Honest:
    """The honest clients as the attack sees them now."""
    assert view.clients is not None
    known = view.clients.known & ~view.clients.malicious
    rows = view.clients.gradients
    return Honest(rows, known, mean_of(rows, known))


def unit(vector: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """The vector at length 1, in float64; zero if it is zero."""
    length = exact_norm(vector)
    return vector.double() / torch.where(length > 0, length, 1)


def slow_mean(before: Float[Tensor, " d"], mean: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """The moving average of the honest mean after one more of them; it starts with the first."""
    mean = mean.double()
    return torch.where(before.any(), torch.lerp(mean, before, _MOMENTUM), mean)


def against_honest(aim: Aim, slow: Float[Tensor, " d"], honest: Honest) -> Float[Tensor, " d"]:
    """Against the slow mean, its signs, or its signs times the standard deviation."""
    if aim == "mean":
        return -slow
    if aim == "sign":
        return -slow.sign()
    return -slow.sign() * deviation_of(honest.rows, honest.known, honest.mean)


def poisoned_gradient(
    poisoning: Bool[Tensor, ""], view: AttackerView, weights: Float[Tensor, " d"]
) -> Float[Tensor, " d"]:
    """The client's gradient on a further batch, which `poison_batch` changes while the flag holds.

    The flag is part of the attack's state and is written in place, so that `view.train` sees it. At
    all other times batches are clean, and a client's own gradient is an honest one.
    """
    poisoning.fill_(True)
    gradient = view.train(weights, 0)
    poisoning.fill_(False)
    return gradient


def poisoned_if(
    poisoning: Bool[Tensor, ""], poisoned: tuple[Tensor, Tensor], clean: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the poisoned batch while the flag holds, else of the clean one."""
    inputs, labels = zip(poisoned, clean, strict=True)
    return torch.where(poisoning, *inputs), torch.where(poisoning, *labels)


def own_coordinates(
    vector: Float[Tensor, " d"], attacker_index: int, groups: int
) -> Float[Tensor, " d"]:
    """The coordinates that belong to the attacker's group; zeros in all others."""
    place = torch.arange(len(vector), device=vector.device)
    group = place * _MULTIPLIER % _PRIME % groups
    return torch.where(group == attacker_index % groups, vector, 0)


def copied(honest: Honest, number: int) -> Float[Tensor, " d"]:
    """The gradient of the honest client with this number among those known, counted in circles."""
    wanted = 1 + number % honest.known.sum().clamp(min=1)
    chosen = honest.known & (honest.known.cumsum(0) == wanted)
    return row(honest.rows, chosen.int().argmax())


def mixed(
    aim: Float[Tensor, " d"], cover: Float[Tensor, " d"], share: float
) -> Float[Tensor, " d"]:
    """The two as unit vectors, with such shares that the mix of orthogonal ones has length 1."""
    return share * unit(aim) + math.sqrt(1 - share**2) * unit(cover)


def honest_length(length: Length, honest: Honest, uploads: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """How long an upload is; `uploads` is how many this client made before."""
    norms = torch.where(honest.known, exact_norm(honest.rows), 0)
    if length == "longest":
        return norms.max()
    median = median_of(norms, honest.known)
    return median / (1 + uploads.double()).sqrt() if length == "shrinking" else median


def is_time(timing: Timing, period: int, uploads: Int[Tensor, ""]) -> Bool[Tensor, ""]:
    """Whether a client attacks after this many uploads, as far as their number decides it."""
    if timing == "late":
        return uploads >= period
    if timing == "early":
        return uploads < period
    if timing == "on_off":
        return uploads // period % 2 == 0
    return torch.ones_like(uploads, dtype=torch.bool)


def is_fast(move: Float[Tensor, ""], earlier: Float[Tensor, " moves"]) -> Bool[Tensor, ""]:
    """Whether a move of this length is longer than the median of earlier ones; -1 is none yet."""
    return move > median_of(earlier, earlier >= 0)
