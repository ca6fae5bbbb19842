"""No attack: every client is honest."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NoAttack:
    """No client is malicious, whatever `malicious` says."""

    knows = "own"

    def init(self, scene):
        return ()

    def poison_batch(self, state, inputs, labels, member):
        return inputs, labels

    def poison_update(self, state, trained, seen):
        return trained.gradient, state
