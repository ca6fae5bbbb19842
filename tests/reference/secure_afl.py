"""SecureAFL's server, arrival by arrival, with lists and loops."""

from typing import NamedTuple

import numpy as np
from reference.lipschitz_filter import LipschitzFilter


class Outcome(NamedTuple):
    """What one arrival did."""

    accepted: bool
    stepped: bool
    factor: float  # lambda; NaN where undefined
    threshold: float
    direction: np.ndarray
    rows: list  # what was aggregated


class SecureAflServer:
    """`models[t]` is w^t; every arrival adds one model, changed or not."""

    def __init__(
        self,
        weights,
        learning_rate,
        *,
        estimate_one,
        aggregate,
        alpha=0.8,
        clip_norm=50.0,
        window=0,
        rejected="keep",
        use_filter=True,
        estimate=True,
        use_received=True,
        store_received=True,
        tie_tolerance=1e-9,
    ):
        self.models = [np.array(weights, dtype=np.float64)]
        self.learning_rate = learning_rate
        self.estimate_one, self.aggregate = estimate_one, aggregate
        self.clip_norm, self.rejected = clip_norm, rejected
        self.use_filter, self.estimate, self.use_received = use_filter, estimate, use_received
        self.store_received = store_received
        self.filter = LipschitzFilter(alpha, window)
        self.tie_tolerance = tie_tolerance
        self.reference = {}  # client -> (gradient, base) the next lambda is measured against
        self.sent = {}  # client -> all (gradient, base) that estimates may use

    @property
    def weights(self):
        """w^t."""
        return self.models[-1]

    def receive(self, client, version, gradient, too_close_to_call=None):
        """One arrival.

        Where lambda equals the threshold up to rounding, either verdict is right;
        `too_close_to_call` is then taken.
        """
        gradient, base = np.asarray(gradient, dtype=np.float64), self.models[version]
        if gradient.shape != base.shape or not np.isfinite(gradient).all():
            self.models.append(self.weights)
            return Outcome(False, False, np.nan, np.nan, np.zeros_like(base), [])
        first = client not in self.reference
        if first and np.linalg.norm(gradient) > self.clip_norm:
            gradient = gradient * (self.clip_norm / np.linalg.norm(gradient))

        accepted, factor = True, np.nan
        moved = 0.0 if first else np.linalg.norm(base - self.reference[client][1])
        if moved > 0:
            factor = np.linalg.norm(gradient - self.reference[client][0]) / moved
            self.filter.add(factor)
            close = np.isclose(factor, self.filter.threshold, rtol=self.tie_tolerance, atol=0)
            accepted = factor <= self.filter.threshold
            if close and too_close_to_call is not None:
                accepted = too_close_to_call
            accepted = bool(accepted) or not self.use_filter

        rows = self._voices(client, gradient, accepted)
        direction = self.aggregate(np.array(rows)) if rows else np.zeros_like(base)
        step = self.learning_rate * direction if rows else 0.0
        self.models.append(self.weights - step)
        self._store(client, (gradient, base), accepted)
        return Outcome(accepted, bool(rows), factor, self.filter.threshold, direction, rows)

    def _store(self, client, upload, accepted):
        kept = accepted or self.rejected == "keep"
        if not self.store_received:
            kept = client not in self.sent
        if kept or self.rejected == "reference":
            self.reference[client] = upload
        if kept:
            self.sent.setdefault(client, []).append(upload)

    def _voices(self, client, gradient, accepted):
        if not self.estimate:
            return [gradient] if accepted else []
        received = [gradient] if accepted and self.use_received else []
        others = [k for k in sorted(self.sent) if k != client]
        return received + [self.estimate_one(self.sent[k], self.weights) for k in others]
