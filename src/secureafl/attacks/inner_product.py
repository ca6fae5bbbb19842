"""Inner product: upload the honest mean with its sign turned.

With the factor epsilon the inner product of the true gradient and what the server applies becomes
small or negative: b of n clients malicious undo all progress of undefended asynchronous SGD at
epsilon = (n - b) / b. A small epsilon hides among honest gradients, whose mean is short.
`composed` has the same direction as its aim `mean` without a cover, but of a slow mean, and a
length that does not depend on the mean's.

Xie, Koyejo, Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner product
manipulation", UAI 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.core.errors import require
from secureafl.linalg.rows import mean_of
from secureafl.linalg.vectors import choose

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackContext, AttackerView


@dataclass(frozen=True)
class InnerProduct:
    """-epsilon * mean of what honest clients trained last."""

    epsilon: float = 5.0

    knows = "everybody"
    recordable = True
    presets = {"stealth": {"epsilon": 0.1}}

    def __post_init__(self) -> None:
        epsilon = self.epsilon
        require(0 < epsilon < torch.inf, "epsilon", epsilon, "give a factor above 0")

    def init(self, context: AttackContext) -> tuple[()]:
        return ()

    def poison_batch(
        self,
        state: tuple[()],
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        return inputs, labels

    def poison_update(
        self, state: tuple[()], arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        assert view.clients is not None
        honest = view.clients.known & ~view.clients.malicious
        mean = mean_of(view.clients.gradients, honest)
        return choose(honest.any(), -self.epsilon * mean, arrival.gradient), state
