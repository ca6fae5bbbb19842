"""Gaussian: upload noise that has nothing to do with the data.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant
gradient descent", NeurIPS 2017.
"""

from dataclasses import dataclass

import torch

from secureafl.core.errors import require


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise in every coordinate."""

    knows = "own"
    presets = {"stealth": {"std": 0.44}, "stated": {"std": 200.0}}

    std: float = 1.1

    def __post_init__(self) -> None:
        require(self.std > 0, "std", self.std, "give a standard deviation above 0")

    def init(self, context):
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        noise = torch.empty_like(arrival.gradient).normal_(generator=view.generator)
        return self.std * noise, state
