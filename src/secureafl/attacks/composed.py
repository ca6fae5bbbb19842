"""Composed: an upload put together from an aim, a cover, curvature, a length, timing and collusion.

Every part is a setting, so that a search can find the composition that a defence stands worst.
`aim` is what does harm: against the slow mean of the honest gradients (`mean`), its signs (`sign`),
its signs times their standard deviation (`std`); the gradient on flipped labels (`label`) or on
the samples of one class with the label of the next (`one_class`); the way to a random model far
away (`model`). `cover` makes uploads of several clients differ: the client's own gradient (`own`),
a random direction that it keeps (`private`) or not (`fresh`), the gradient of an honest client, the
same for all (`copy`) or another for each (`copies`). `curvature` adds the model's move since the
client's last upload, as a smooth loss would. `collusion` lets each group push its own coordinates
of the aim, or sacrifices the first client, whose blatant uploads keep tests for outliers busy.

Aims on poisoned data cost one more gradient per attacking upload, since the client's own is trained
on clean data. Memory: a vector for the slow mean or the far model, and what `attacks.composition`
says of cover, curvature and timing.

The aims are those of Xie, Koyejo, Gupta, "Fall of empires", UAI 2019, of Shejwalkar, Houmansadr,
"Manipulating the Byzantine", NDSS 2021, and of Tolpegin et al., "Data poisoning attacks against
federated learning systems", ESORICS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.composition import Composition, Memory
from secureafl.attacks.parts import (
    Aim,
    Honest,
    against_honest,
    honest_clients,
    poisoned_gradient,
    poisoned_if,
    slow_mean,
    unit,
)
from secureafl.core.errors import ConfigError, require

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView

_TRAINED: tuple[Aim, ...] = ("label", "one_class")  # aims that are gradients of poisoned batches
_FAR = 30.0  # length of the wrong model; the CNN for Fashion-MNIST starts at 8


class State(NamedTuple):
    """What all malicious clients share."""

    memory: Memory
    reference: Float[Tensor, " d"]  # the wrong model of the aim `model`; else the slow honest mean
    highest_label: Int[Tensor, ""]
    poisoning: Bool[Tensor, ""]  # whether `poison_batch` changes batches now


@dataclass(frozen=True)
class Composed(Composition):
    """s * aim + sqrt(1 - s^2) * cover, as long as an honest gradient."""

    aim: Aim = "mean"
    victim_class: int = 0  # the one to unlearn, for the aim `one_class`

    presets = {
        "stealth": {"cover": "own", "share": 0.4},
        "blend": {"cover": "own"},
        "camouflage": {"cover": "private", "curvature": 0.3},
        "split": {"cover": "own", "collusion": "groups"},
        "sleeper": {"cover": "own", "timing": "late"},
        "decoy": {"cover": "own", "collusion": "sacrificed"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.victim_class >= 0, "victim_class", self.victim_class, "give 0 or more")

    recordable = Composition.draws_nothing

    @property
    def further_batches(self) -> int:
        """The poisoned one of an aim that is trained (`core.traits`)."""
        return int(self.aim in _TRAINED)

    def init(self, context: AttackContext) -> State:
        device, classes = context.pixel_mean.device, context.num_classes
        if self.aim == "one_class":
            if not classes:
                raise ConfigError("the aim 'one_class' needs classes; this task has none")
            known = self.victim_class < classes
            require(known, "victim_class", self.victim_class, f"there are {classes} classes")
        reference = torch.zeros(context.num_parameters, dtype=torch.float64, device=device)
        if self.aim == "model":
            reference = _FAR * unit(reference.normal_(generator=context.generator))
        highest = torch.tensor(max(classes - 1, 0), device=device)
        poisoning = torch.tensor(False, device=device)
        return State(self.no_memory(context), reference, highest, poisoning)

    def poison_batch(
        self,
        state: State,
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        if self.aim == "label":
            flipped = inputs, state.highest_label - labels
            return poisoned_if(state.poisoning, flipped, (inputs, labels))
        if self.aim == "one_class":
            unlearnt = self._only_victims(state, inputs, labels)
            return poisoned_if(state.poisoning, unlearnt, (inputs, labels))
        return inputs, labels

    def _only_victims(self, state: State, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Only samples of the class, repeated, with the next label; all as they are without any."""
        victims = labels == self.victim_class
        first = (~victims).int().argsort(stable=True)
        count = torch.where(victims.any(), victims.sum(), len(labels))
        chosen = first[torch.arange(len(labels), device=labels.device) % count]
        other = torch.where(state.highest_label > self.victim_class, self.victim_class + 1, 0)
        return inputs[chosen], torch.where(victims.any(), other, labels).to(labels.dtype)

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        honest = honest_clients(view)
        if self.aim in ("mean", "sign", "std"):
            state = state._replace(reference=slow_mean(state.reference, honest.mean))

        def aim() -> Tensor:
            return self._aim(state, arrival, view, honest)

        upload, memory = self.compose(state.memory, arrival, view, honest, aim)
        return upload, state._replace(memory=memory)

    def _aim(
        self, state: State, arrival: Arrival, view: AttackerView, honest: Honest
    ) -> Float[Tensor, " d"]:
        if self.aim in _TRAINED:
            return poisoned_gradient(state.poisoning, view, arrival.base)
        if self.aim == "model":
            return arrival.base - state.reference
        return against_honest(self.aim, state.reference, honest)
