"""AsyncDefender as it is interpreted here."""

import numpy as np
from reference.arrivals import applied, refused


class AsyncDefenderServer:
    """The means are plain ones until they have `memory`, exponential ones after that."""

    def __init__(self, memory, headroom, clip_norm, credibility):
        self.memory, self.headroom = memory, headroom
        self.clip_norm, self.credibility = clip_norm, credibility
        self.uploads, self.credit = [], {}

    def _mean(self, values):
        weights = np.array([])
        for count in range(1, len(values) + 1):
            rate = max(1 / count, 1 - self.memory)
            weights = np.append(weights * (1 - rate), rate)
        return sum(w * v for w, v in zip(weights, values, strict=True)) if values else 0.0

    def receive(self, seen):
        gradient, length = seen.gradient, np.linalg.norm(seen.gradient)
        mean = self._mean(self.uploads)
        typical = self._mean([np.linalg.norm(upload) for upload in self.uploads])
        blank = np.linalg.norm(mean) == 0 or typical == 0
        starting = blank or len(self.uploads) < round(1 / (1 - self.memory))
        radius = self.clip_norm if blank else self.headroom * typical
        upload = gradient * radius / length if length > radius else gradient
        self.uploads.append(upload)
        product = length * np.linalg.norm(mean)
        cosine = np.sum(gradient * mean) / product if product else 0.0
        before = self.credit.get(seen.client, 0.0)
        self.credit[seen.client] = credit = self.memory * before + (1 - self.memory) * cosine
        weight = 1.0 if starting else max(0.0, cosine)
        scores = {"cosine": cosine, "weight": weight, "credit": credit}
        distrusted = self.credibility and credit < 0 and not starting
        if weight == 0 or distrusted:
            return refused(seen, scores)
        return applied(weight * upload, scores)
