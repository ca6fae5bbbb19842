"""FedBuff: the mean of every K discounted uploads."""

import numpy as np
from reference.arrivals import Outcome


class FedBuffServer:
    """One list."""

    def __init__(self, buffer_size):
        self.buffer_size, self.buffer = buffer_size, []

    def receive(self, seen):
        weight = 1 / np.sqrt(1 + seen.staleness)
        self.buffer.append(weight * seen.gradient)
        scores = {"weight": weight, "buffered": len(self.buffer)}
        if len(self.buffer) < self.buffer_size:
            return Outcome(True, False, np.zeros_like(seen.weights), scores)
        step, self.buffer = np.mean(self.buffer, axis=0), []
        return Outcome(True, True, step, scores)
