"""Adaptive: knows the whole server, and uploads the most harmful update that it accepts.

All malicious clients aim at one crafted update: the mean of the honest clients' updates, moved
against the sign of their median by a number of standard deviations, no more of them than help.
Against SecureAFL each moves there from its last upload as fast as the filter lets it, since the
filter compares a client with itself alone; against trust clipping, which judges over many uploads,
each mixes a poisoned direction with its own gradient (`attacks.blending`). Any other defence is
tried, on a copy of its state, with uploads between the honest median and the target; the one that
hurts most is uploaded.

The crafted update is in the manner of Shejwalkar, Houmansadr, "Manipulating the Byzantine:
optimizing model poisoning attacks and defenses for federated learning", NDSS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.aggregators.mean import Mean
from secureafl.attacks.blending import Colluders, blended, no_colluders
from secureafl.attacks.evasion import ask_defense, pass_filter
from secureafl.attacks.median_push import MOST, crafted, honest_stats, smallest_best
from secureafl.core.errors import require
from secureafl.defenses.secure_afl import SecureAfl, estimates
from secureafl.defenses.trust_clipping import TrustClipping

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped
    from torch import Tensor

    from secureafl.core.protocols import Defense
    from secureafl.core.types import (
        Arrival,
        AttackContext,
        AttackerView,
        ClientGradients,
        ServerSnapshot,
    )


@dataclass(frozen=True)
class Adaptive:
    """The most harmful upload that the defence accepts.

    A share `strength` is used: of the standard deviations, or of the poisoned part. Where no honest
    client is known yet, or no crafted update is accepted, the honest gradient is uploaded.
    """

    knows = "defense"
    presets = {"stealth": {"strength": 0.3}}

    strength: float = 1.0

    def __post_init__(self) -> None:
        remedy = "give a share above 0, at most 1"
        require(0 < self.strength <= 1, "strength", self.strength, remedy)

    def init(self, context: AttackContext) -> Colluders:
        return no_colluders(context)

    def poison_batch(
        self,
        state: Colluders,
        inputs: Shaped[Tensor, " b *sample"],
        labels: Shaped[Tensor, " b *label"],
        attacker_index: Int[Tensor, ""],
    ) -> tuple[Shaped[Tensor, " b *sample"], Shaped[Tensor, " b *label"]]:
        return inputs, labels

    def poison_update(
        self, state: Colluders, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], Colluders]:
        assert view.clients is not None
        assert view.snapshot is not None
        defense, kept, _ = view.snapshot
        if isinstance(defense, TrustClipping):
            return blended(state, arrival, view, defense, self.strength)
        values, honest = _honest_values(view.clients, view.snapshot)
        stats = honest_stats(values, honest, view.clients.malicious.sum())
        deviations = smallest_best(stats) if _saturates(defense) else MOST
        target = crafted(stats, self.strength * deviations)
        # Short and straight against the median: into tests of length or angle that fit tightly.
        back = -2 * self.strength * stats.median
        ways = torch.stack([target, back, stats.median])
        ways = torch.where(stats.count > 0, ways, arrival.gradient)
        if isinstance(defense, SecureAfl):
            return pass_filter(defense, kept, arrival, ways[0]), state
        return ask_defense(view, arrival, ways[:2], ways[2]), state


def _saturates(defense: Defense) -> bool:
    """Whether a longer update soon does no more harm; where the step follows it, it does."""
    if not isinstance(defense, SecureAfl):
        return False
    return defense.estimate and not isinstance(defense.aggregator, Mean)


def _honest_values(clients: ClientGradients, snapshot: ServerSnapshot) -> tuple[Tensor, Tensor]:
    """Each client's update, and who is honest: SecureAFL's estimates, else the last gradients."""
    defense, state, server = snapshot
    if isinstance(defense, SecureAfl):
        values, known = estimates(defense, state, server.weights), state.memory.known
    else:
        values, known = clients.gradients, clients.known
    return values, known & ~clients.malicious
