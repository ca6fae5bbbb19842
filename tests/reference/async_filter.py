"""AsyncFilter with lists: uploads in the buffer, and all judged uploads on each model."""

import numpy as np
from reference.arrivals import Outcome
from reference.kmeans import upper_cluster


class AsyncFilterServer:
    """Model v is the one after v steps."""

    def __init__(self, buffer_size, max_lag):
        self.buffer_size, self.max_lag = buffer_size, max_lag
        self.model_of_round = [0]  # which model is current before each arrival
        self.buffer, self.judged = [], {}

    def receive(self, seen):
        now = self.model_of_round[seen.round]
        model = self.model_of_round[seen.round - seen.staleness]
        taken = now - model <= self.max_lag
        if taken:
            self.buffer.append((model, seen.gradient))
        buffered, ready = len(self.buffer), len(self.buffer) == self.buffer_size
        step, rejected = self._step() if ready else (np.zeros_like(seen.weights), 0)
        self.model_of_round.append(now + ready)
        lag = min(now - model, self.max_lag + 1)  # how far too old does not matter
        scores = {"lag": lag, "buffered": buffered, "rejected": rejected}
        return Outcome(taken, ready, step, scores)

    def _step(self):
        kept = []
        for model in {model for model, _ in self.buffer}:
            group = np.array([upload for other, upload in self.buffer if other == model])
            kept += list(self._kept(model, group) if len(group) >= 3 else group)
        rejected = len(self.buffer) - len(kept)
        self.buffer = []
        return np.mean(kept, axis=0), rejected

    def _kept(self, model, group):
        self.judged.setdefault(model, []).extend(group)
        distances = np.linalg.norm(group - np.mean(self.judged[model], axis=0), axis=1)
        if distances.max() > 0:
            distances = distances / distances.max()
        return group[~upper_cluster(np.round(distances, 12), 3)[0]]
