"""3DFed: a backdoor under noise that cancels out, with decoys, and with news of its success.

The upload is a backdoor's gradient of bounded length. Noise on the last layer makes the uploads of
a group differ, and sums to zero over the group's uploads in turn. A mark in each upload tells
whether the server took it (`attacks.indicator`); length and noise of a group grow and shrink with
that, and when all of a group are refused, its last attacker uploads a decoy: it deviates in one
weight so much that whoever looks for outliers finds this one.

The original's loss holds the model near the received one; a single gradient has no such term, and
a bound on its length takes its place.

Li, Ye, Hu, Li, Wang, Liu, Shi, Zhang, "3DFed: adaptive and extensible framework for covert backdoor
attack in federated learning", IEEE S&P 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.indicator import (
    ACCEPTED,
    REJECTED,
    Marks,
    marked,
    no_marks,
    own_candidates,
    read,
    write,
)
from secureafl.attacks.trigger import TriggerAttack
from secureafl.core.errors import ConfigError, require
from secureafl.linalg.vectors import exact_norm, exactly_scaled

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView, ClientGradients

_LEAST, _GROWTH = 1 / 64, 1.25  # of a group's strength; it halves when refused
_DECOY = 10.0  # deviation of a decoy's weight, in lengths of a benign gradient
_LONGEST_MARK = 0.5  # in lengths of the upload


class State(NamedTuple):
    """Trigger and masked weights are fixed for the run."""

    trigger: Float[Tensor, "c side side"]
    masked: Int[Tensor, " m"]  # coordinates that carry noise
    owed: Float[Tensor, "groups m"]  # sum of the group's noise since that was last zero
    turns: Int[Tensor, " groups"]  # uploads with noise
    strength: Float[Tensor, " groups"]  # up to 1
    marks: Marks


@dataclass(frozen=True)
class ThreeDFed(TriggerAttack):
    """Bounded backdoor, noise that sums to zero, decoys, and the mark that steers them.

    A group's strength, between 0 and 1, scales its noise, and the part of `factor` above 1.
    """

    factor: float = 120.0  # longest upload, in lengths of a benign gradient
    mask_std: float = 0.05  # noise in a weight, once the learning rate is applied
    group_size: int = 5
    masked_classes: int = 5  # rows of the last layer, but never the target's
    mark: float = 10.0  # the mark, in root mean squares of the upload's coordinates

    knows = "colluders"
    presets = {
        "original": {"factor": 5.0},
        "stealth": {"factor": 1.0, "mask_std": 0.001},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.factor >= 1, "factor", self.factor, "give 1 (as long as benign) or more")
        require(self.mask_std >= 0, "mask_std", self.mask_std, "give 0 (no noise) or more")
        require(self.group_size >= 1, "group_size", self.group_size, "give 1 client or more")
        rows = self.masked_classes
        require(rows >= 1, "masked_classes", rows, "give 1 class or more")
        require(self.mark > 0, "mark", self.mark, "give a size above 0")

    def init(self, context: AttackContext) -> State:
        trigger, attackers = self.draw_trigger(context), context.num_malicious
        masked, free = self._choose_weights(context)
        groups = -(-attackers // self.group_size)
        zeros = torch.zeros(groups, len(masked), dtype=torch.float64, device=masked.device)
        turns, strength = masked.new_zeros(groups), zeros.new_ones(groups)
        return State(trigger, masked, zeros, turns, strength, no_marks(free, attackers))

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        assert view.clients is not None
        attacker_index, base, rate = view.attacker_index, arrival.base, view.learning_rate
        group = attacker_index // self.group_size
        first, end = group * self.group_size, (group + 1) * self.group_size
        end = min(end, len(state.marks.status))
        marks = read(state.marks, attacker_index, base, view.round - arrival.staleness, rate)
        _adapt(state.strength[group], marks.status[attacker_index])
        decoy = (marks.status[first:end] == REJECTED).all() & (first < attacker_index == end - 1)
        benign = _benign_length(arrival.gradient, view.clients)
        noise = torch.empty_like(state.owed[group]).normal_(generator=view.generator)
        noise = self.mask_std / rate * state.strength[group] * noise
        mask = _next_mask(state.owed[group], state.turns[group], noise, end - first, ~decoy)
        boost = torch.where(decoy, 1, 1 + state.strength[group] * (self.factor - 1))
        upload = _lengthened(arrival.gradient, boost, benign)
        upload = upload.index_add(0, state.masked, mask.to(upload.dtype))
        shown = torch.where(decoy, _DECOY * benign, 0).to(upload.dtype)
        upload = upload.index_add(0, state.masked[:1], shown[None])
        # As long as the others' uploads may be, or theirs would drown it.
        value = boost * benign * min(_LONGEST_MARK, self.mark / math.sqrt(len(upload)))
        importance = _importance(
            own_candidates(marks, attacker_index), arrival.gradient, view.clients
        )
        marks = write(marks, attacker_index, importance, base, value, view.round)
        return marked(upload, marks, attacker_index), state._replace(marks=marks)

    def _choose_weights(self, context: AttackContext) -> tuple[Tensor, Tensor]:
        """Places of the weights that carry noise, and of those that may carry a mark."""
        starts = [0]
        for shape in context.layout.values():
            starts.append(starts[-1] + math.prod(shape))
        matrices = [
            (start, shape)
            for start, shape in zip(starts, context.layout.values(), strict=False)
            if len(shape) > 1
        ]
        device, (last, shape) = context.pixel_mean.device, (matrices or [(0, (0,))])[-1]
        if not shape[0] >= context.num_classes >= 2:
            raise ConfigError(f"3DFed needs a last layer with a row per class; here it is {shape}")
        order = torch.randperm(context.num_classes, generator=context.generator, device=device)
        rows = order[order != self.target_class][: self.masked_classes]
        width = math.prod(shape[1:])
        masked = (last + rows[:, None] * width + torch.arange(width, device=device)).flatten()
        start, shape = matrices[(len(matrices) - 1) // 2]
        middle = start + torch.arange(math.prod(shape), device=device)
        return masked, middle[~torch.isin(middle, masked)]


def _adapt(strength: Float[Tensor, ""], status: Int[Tensor, ""]) -> None:
    """Bolder after success and more careful after a refusal, in place."""
    factor = torch.where(status == ACCEPTED, _GROWTH, torch.where(status == REJECTED, 0.5, 1.0))
    strength.copy_((strength * factor).clamp(_LEAST, 1))


def _benign_length(gradient: Tensor, clients: ClientGradients) -> Float[Tensor, ""]:
    """What the colluders take for the length of an honest gradient: the median of their own."""
    lengths = torch.where(clients.known, exact_norm(clients.gradients), torch.nan)
    return torch.cat([lengths, exact_norm(gradient)[None]]).nanmedian()


def _importance(places: Tensor, gradient: Tensor, clients: ClientGradients) -> Tensor:
    """How much any colluder trains the weights at these places."""
    others = torch.where(clients.known[:, None], clients.gradients[:, places], 0)
    return torch.cat([others, gradient[places][None]]).abs().amax(dim=0)


def _lengthened(gradient: Tensor, boost: Tensor, benign: Tensor) -> Tensor:
    """`boost` times the gradient, or what is benign if that is shorter."""
    length = exact_norm(gradient)
    scale = torch.where(length > benign, benign / length, 1.0)
    return exactly_scaled(gradient, boost * scale)


def _next_mask(
    owed: Float[Tensor, " m"], turn: Int[Tensor, ""], noise: Tensor, size: int, counts: Tensor
) -> Float[Tensor, " m"]:
    """The next of `size` masks that sum to zero; `owed` and `turn` change in place if it counts.

    Drawn one by one, they are normal noise minus its mean over the pass; the last takes back what
    all before it added, whatever strength those had.
    """
    left = size - turn % size
    mask = (1 - 1 / left.double()).sqrt() * noise - owed / left
    mask = torch.where(counts, mask, 0)
    owed.copy_(torch.where(counts & (left == 1), 0, owed + mask))
    turn.add_(counts)
    return mask
