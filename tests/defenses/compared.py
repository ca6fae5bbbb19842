"""SecureAFL's server and its oracle, side by side."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from reference import estimators as guesses
from reference import order_rules
from reference.secure_afl import SecureAflServer

from secureafl.aggregators import Mean, Median, TrimmedMean
from secureafl.core.server import Server, Upload
from secureafl.defenses import SecureAfl
from secureafl.estimators import HistoryMean, LastUpdate, Lbfgs

RATE = 0.05
ESTIMATORS = {
    "lbfgs": (
        Lbfgs(),
        partial(guesses.lbfgs, buffer_size=3, min_curvature=1e-3, max_correction=0.5),
    ),
    "lbfgs_one_pair": (
        Lbfgs(1, 0.1, 2.0),
        partial(guesses.lbfgs, buffer_size=1, min_curvature=0.1, max_correction=2.0),
    ),
    "last_update": (LastUpdate(), guesses.last_update),
    "history_mean": (HistoryMean(2), partial(guesses.history_mean, length=2)),
}


@dataclass(frozen=True)
class Largest:
    """A rule of one's own, without ranks: the largest value of each coordinate."""

    def init(self, num_clients, weights):
        return ()

    def aggregate(self, state, values, present):
        return torch.where(present[:, None], values, -torch.inf).amax(dim=0), state


AGGREGATORS = {
    "largest": (Largest(), partial(np.max, axis=0)),
    "median": (Median(), order_rules.median),
    "mean": (Mean(), order_rules.mean),
    "trimmed_mean": (TrimmedMean(0.3), partial(order_rules.trimmed_mean, share=0.3)),
}


class Options(NamedTuple):
    """A selection of every setting, for both sides."""

    estimator: str = "lbfgs"
    aggregator: str = "median"
    alpha: float = 0.8
    clip_norm: float = 50.0
    window: int = 0
    rejected: str = "keep"
    filter: bool = True
    estimate: bool = True
    use_received: bool = True
    store_received: bool = True

    def defense(self):
        settings = self._asdict()
        settings["estimator"] = ESTIMATORS[self.estimator][0]
        settings["aggregator"] = AGGREGATORS[self.aggregator][0]
        return SecureAfl(**settings)

    def oracle(self, weights, tie_tolerance):
        return SecureAflServer(
            weights,
            RATE,
            estimate_one=ESTIMATORS[self.estimator][1],
            aggregate=AGGREGATORS[self.aggregator][1],
            alpha=self.alpha,
            clip_norm=self.clip_norm,
            window=self.window,
            rejected=self.rejected,
            use_filter=self.filter,
            estimate=self.estimate,
            use_received=self.use_received,
            store_received=self.store_received,
            tie_tolerance=tie_tolerance,
        )


class Comparison:
    """The package's server and the oracle, side by side on the same arrivals."""

    def __init__(self, options, num_clients, weights, dtype, tolerance):
        self.tolerance = tolerance
        self.server = Server(options.defense(), num_clients, RATE)
        first = torch.from_numpy(weights).to(dtype)
        self.state = self.server.start(first)
        self.models = [first]
        self.oracle = options.oracle(first.double().numpy(), tie_tolerance=tolerance)

    def arrive(self, client, lag, gradient):
        """One arrival on both sides; the oracle then takes the package's model, rounded alike."""
        version = max(0, self.state.round - lag)
        base = self.models[version]
        gradient = torch.from_numpy(np.asarray(gradient)).to(base.dtype)
        self.state.ledger.lend(version, base)
        upload = Upload(client, version, gradient)
        decision, self.state = self.server.receive(self.state, upload)
        self.models.append(self.state.weights)
        outcome = self.oracle.receive(
            client, version, gradient.double().numpy(), bool(decision.accepted)
        )
        self._compare(decision, outcome)
        self.oracle.models[-1] = self.state.weights.double().numpy()
        return decision

    def _compare(self, decision, outcome):
        near = partial(np.testing.assert_allclose, rtol=self.tolerance)
        assert bool(decision.accepted) == outcome.accepted
        assert bool(decision.ready) == outcome.stepped
        near(float(decision.scores["lipschitz"]), outcome.factor)
        near(float(decision.scores["threshold"]), outcome.threshold)
        if outcome.stepped:
            largest = max(np.linalg.norm(row) for row in outcome.rows)
            found, tolerance = decision.direction.double().numpy(), self.tolerance + self._lost()
            near(found, outcome.direction, atol=tolerance * largest)
            moved, last = self.oracle.weights, self.oracle.models[-2]
            scale = np.abs(last).max() + RATE * largest
            near(self.state.weights.double().numpy(), moved, atol=tolerance * scale)
        else:
            assert torch.equal(self.models[-1], self.models[-2])

    def _lost(self):
        """What cancels when a short drift's length is made of a long model's inner products."""
        model = self.oracle.models[-2]
        drifts = [np.linalg.norm(model - sent[-1][1]) for sent in self.oracle.sent.values()]
        shortest = min((drift for drift in drifts if drift > 0), default=np.inf)
        eps = torch.finfo(self.models[0].dtype).eps
        return 8 * eps * (np.linalg.norm(model) / shortest) ** 2
