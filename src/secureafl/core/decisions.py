"""Decisions on the host: the few numbers of a device's decision that drivers read and store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from secureafl.core.types import Decision


class HostDecision(NamedTuple):
    """A `Decision` without its direction, as plain numbers."""

    accepted: bool
    stepped: bool  # whether the model moved
    scores: dict[str, float]
    reason: str  # why it was not accepted; empty if it was


def to_host(decision: Decision) -> HostDecision:
    """Read a decision from its device, which waits until it is computed."""
    if decision.accepted.is_cpu:  # nothing to wait for, so one by one is faster
        numbers = [float(number) for number in _numbers(decision)]
    else:
        numbers = numbers_of(decision).tolist()
    return from_numbers(numbers, [*decision.scores], decision.reason)


def numbers_of(decision: Decision) -> Float[Tensor, " numbers"]:
    """All that the host reads of a decision, as one tensor on its device."""
    return torch.stack([number.double() for number in _numbers(decision)])


def _numbers(decision: Decision) -> tuple[Tensor, ...]:
    return decision.accepted, decision.ready, *decision.scores.values()


def from_numbers(numbers: Sequence[float], names: Sequence[str], reason: str) -> HostDecision:
    """The decision that `numbers_of` made these of; `names` are those of its scores."""
    accepted, stepped, *scores = numbers
    named = dict(zip(names, scores, strict=True))
    return HostDecision(bool(accepted), bool(stepped), named, "" if accepted else reason)
