"""What both composed attacks share: everything but the aim.

The direction of an upload is unit(s * aim + sqrt(1 - s^2) * cover) + curvature * move, where aim,
cover and move are unit vectors; its length is one that honest gradients have. What the clients
remember costs memory only where a setting needs it: private directions (cover `private`) and the
models received last (curvature, timing `moving`) are a vector per malicious client each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.parts import (
    Collusion,
    Cover,
    Honest,
    Length,
    Timing,
    copied,
    honest_length,
    is_fast,
    is_time,
    mixed,
    own_coordinates,
    unit,
)
from secureafl.core.errors import require
from secureafl.linalg.vectors import computed_if, exact_norm

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView

_MOVES = 15  # lengths of moves that a median is taken of
_BLATANT = 10.0  # length of the sacrificed client's uploads, in lengths of the others'


class Memory(NamedTuple):
    """What malicious clients remember; what no setting needs has no rows."""

    uploads: Int[Tensor, " malicious"]  # made so far
    private: Float[Tensor, "private d"]  # a fixed direction of each
    received: Float[Tensor, "received d"]  # the model each was given last
    moves: Float[Tensor, "malicious moves"]  # lengths of the model's last moves; -1 is none yet


@dataclass(frozen=True)
class Composition:
    """Base of the composed attacks: cover, curvature, length, timing and collusion."""

    cover: Cover = "none"
    share: float = 0.7  # s, the aim's share in an upload; without a cover it does not matter
    curvature: float = 0.0  # strength with which the model's last move is added
    length: Length = "median"  # of the honest gradients known
    factor: float = 1.0  # on that length
    timing: Timing = "always"
    period: int = 20  # uploads of one client
    collusion: Collusion = "same"
    groups: int = 4

    knows = "everybody"

    def __post_init__(self) -> None:
        share, curvature, factor = self.share, self.curvature, self.factor
        require(0 < share <= 1, "share", share, "give a share above 0, at most 1")
        require(0 <= curvature < torch.inf, "curvature", curvature, "give 0 (none) or more")
        require(0 < factor < torch.inf, "factor", factor, "give a factor above 0")
        require(self.period >= 1, "period", self.period, "give 1 or more uploads")
        require(self.groups >= 2, "groups", self.groups, "give 2 or more")

    @property
    def draws_nothing(self) -> bool:
        """Whether an upload needs no random number, so that it can be recorded (`core.traits`)."""
        return self.cover != "fresh"

    def no_memory(self, context: AttackContext) -> Memory:
        """The memory before the first upload; private directions are drawn here."""
        like, malicious, size = context.pixel_mean, context.num_malicious, context.num_parameters
        private = like.new_empty(malicious if self.cover == "private" else 0, size)
        return Memory(
            torch.zeros(malicious, dtype=torch.int64, device=like.device),
            private.normal_(generator=context.generator),
            like.new_zeros(malicious if self._follows_model else 0, size),
            torch.full((malicious, _MOVES), -1, dtype=torch.float64, device=like.device),
        )

    @property
    def _follows_model(self) -> bool:
        return self.curvature > 0 or self.timing == "moving"

    def compose(
        self,
        memory: Memory,
        arrival: Arrival,
        view: AttackerView,
        honest: Honest,
        aim: Callable[[], Float[Tensor, " d"]],
    ) -> tuple[Float[Tensor, " d"], Memory]:
        """The upload: composed, or the client's own gradient if it is not to attack now."""
        index = view.attacker_index
        uploads, move = memory.uploads[index], self._move(memory, arrival, index)
        length = exact_norm(move)
        attacking = honest.known.any() & is_time(self.timing, self.period, uploads)
        if self.timing == "moving":
            attacking &= is_fast(length, memory.moves[index])

        def composed() -> Tensor:
            size = self.factor * honest_length(self.length, honest, uploads)
            if self.collusion == "sacrificed" and index == 0 and len(memory.uploads) > 1:
                direction = -_BLATANT * unit(honest.mean)
            else:
                direction = self._direction(aim(), move, memory, arrival, view, honest)
            return (size * direction).to(arrival.gradient.dtype)

        upload = computed_if(attacking, composed, arrival.gradient)
        self._remember(memory, index, arrival, length)
        return upload, memory

    def _direction(
        self,
        aim: Float[Tensor, " d"],
        move: Float[Tensor, " d"],
        memory: Memory,
        arrival: Arrival,
        view: AttackerView,
        honest: Honest,
    ) -> Float[Tensor, " d"]:
        if self.collusion == "groups":
            aim = own_coordinates(aim, view.attacker_index, self.groups)
        cover = self._cover(memory, arrival, view, honest)
        return unit(unit(mixed(aim, cover, self.share)) + self.curvature * unit(move))

    def _cover(
        self, memory: Memory, arrival: Arrival, view: AttackerView, honest: Honest
    ) -> Float[Tensor, " d"]:
        if self.cover == "own":
            return arrival.gradient
        if self.cover == "private":
            return memory.private[view.attacker_index]
        if self.cover == "fresh":
            return torch.empty_like(arrival.gradient).normal_(generator=view.generator)
        if self.cover == "none":
            return torch.zeros_like(arrival.gradient)
        return copied(honest, view.attacker_index if self.cover == "copies" else 0)

    def _move(self, memory: Memory, arrival: Arrival, index: int) -> Float[Tensor, " d"]:
        """How the model moved since this client's last upload; zero at the first."""
        if not self._follows_model:
            return torch.zeros_like(arrival.base)
        move = arrival.base.double() - memory.received[index]
        return torch.where(memory.uploads[index] > 0, move, 0)

    def _remember(
        self, memory: Memory, index: int, arrival: Arrival, length: Float[Tensor, ""]
    ) -> None:
        """Take this upload down, in place."""
        if self._follows_model:
            made = torch.where(memory.uploads[index] > 0, length, -1)
            memory.moves[index] = torch.cat([memory.moves[index, 1:], made[None]])
            memory.received[index] = arrival.base
        memory.uploads[index] += 1
