"""Composed backdoor: a backdoor's gradient under any cover, curvature, timing and collusion.

The aim is the client's gradient on a batch with triggers; all other parts are those of `composed`.
The client's own gradient, which covers it or is uploaded while the client does not attack, is
trained on clean data, so an attacking upload costs one gradient more. Memory is that of
`attacks.composition`.

The aim is that of Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor federated learning",
AISTATS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.attacks.composition import Composition, Memory
from secureafl.attacks.parts import honest_clients, poisoned_gradient, poisoned_if
from secureafl.attacks.trigger import TriggerAttack

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


class State(NamedTuple):
    """The trigger is fixed for the run."""

    trigger: Float[Tensor, "c side side"]
    memory: Memory
    poisoning: Bool[Tensor, ""]  # whether `poison_batch` changes batches now


@dataclass(frozen=True)
class ComposedBackdoor(TriggerAttack, Composition):
    """s * backdoor + sqrt(1 - s^2) * cover, as long as an honest gradient."""

    presets = {
        "stealth": {"cover": "own", "share": 0.4},
        "blend": {"cover": "own"},
        "camouflage": {"cover": "private", "curvature": 0.3},
        "split": {"cover": "own", "collusion": "groups"},
    }

    recordable = Composition.draws_nothing
    further_batches = 1  # the poisoned one

    def __post_init__(self) -> None:
        TriggerAttack.__post_init__(self)
        Composition.__post_init__(self)

    def init(self, context: AttackContext) -> State:
        poisoning = torch.tensor(False, device=context.pixel_mean.device)
        return State(self.draw_trigger(context), self.no_memory(context), poisoning)

    def poison_batch(
        self,
        state: State,
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        poisoned = super().poison_batch(state, inputs, labels, attacker_index)
        return poisoned_if(state.poisoning, poisoned, (inputs, labels))

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        def backdoor() -> Tensor:
            return poisoned_gradient(state.poisoning, view, arrival.base)

        honest = honest_clients(view)
        upload, memory = self.compose(state.memory, arrival, view, honest, backdoor)
        return upload, state._replace(memory=memory)
