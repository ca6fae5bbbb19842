"""No attack: every client is honest."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NoAttack:
    """No client is malicious, whatever `malicious` says."""

    knows = "own"

    def init(self, context):
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        return arrival.gradient, state
