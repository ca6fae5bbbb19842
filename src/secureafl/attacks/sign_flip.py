"""Sign flip: upload the negative gradient, times a factor.

Fang, Cao, Jia, Gong, "Local model poisoning attacks to Byzantine-robust federated learning",
USENIX Security 2020.
"""

from dataclasses import dataclass

from secureafl.core.errors import require


@dataclass(frozen=True)
class SignFlip:
    """-factor * g."""

    knows = "own"
    presets = {"stealth": {"factor": 0.5}, "stated": {"factor": 1.0}}

    factor: float = 1.7

    def __post_init__(self) -> None:
        require(self.factor > 0, "factor", self.factor, "give a factor above 0")

    def init(self, context):
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        return -self.factor * arrival.gradient, state
