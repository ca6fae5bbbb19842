"""BASGD: lists of uploads, one per buffer."""

import numpy as np
from reference.arrivals import Outcome


class BasgdServer:
    """Client i writes to buffer i mod B; `trimmed` buffers are dropped at each end, or None."""

    def __init__(self, num_buffers, trimmed):
        self.num_buffers, self.trimmed = num_buffers, trimmed
        self._empty()

    def _empty(self):
        self.buffers = [[] for _ in range(self.num_buffers)]

    def receive(self, seen):
        self.buffers[seen.client % self.num_buffers].append(seen.gradient)
        scores = {"filled": sum(1 for buffer in self.buffers if buffer)}
        if not all(self.buffers):
            return Outcome(True, False, np.zeros_like(seen.weights), scores)
        rows = np.array([np.mean(buffer, axis=0) for buffer in self.buffers])
        self._empty()
        if self.trimmed is None:
            return Outcome(True, True, np.median(rows, axis=0), scores)
        middle = np.sort(rows, axis=0)[self.trimmed : self.num_buffers - self.trimmed]
        return Outcome(True, True, middle.mean(axis=0), scores)
