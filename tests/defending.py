"""A defence and its oracle, side by side on the same arrivals."""

import numpy as np
import torch
from hypothesis import strategies as st
from reference.arrivals import Seen

from secureafl.core.server import NORM, Server, Upload
from secureafl.testing.driver import QuadraticRootData

DIM, RATE = 4, 0.05
_SETTING = np.random.default_rng(11)
HESSIAN = _SETTING.uniform(0.5, 2, DIM)
CENTRES = 1 + 0.3 * _SETTING.normal(size=(5, DIM))
START = _SETTING.normal(size=DIM)
TRUSTED = QuadraticRootData(torch.from_numpy(HESSIAN), torch.from_numpy(CENTRES))


def own_gradient(weights):
    """What the trusted samples' gradient is, as an array."""
    return TRUSTED.gradient(torch.from_numpy(weights)).numpy()


def own_outputs(weights):
    """What a model says to the trusted samples, as an array."""
    return TRUSTED.outputs(torch.from_numpy(weights)).numpy()


class SideBySide:
    """Every arrival goes to both; they must say the same. The models are the package's."""

    def __init__(self, defense, num_clients, oracle, root_data=None, dtype=torch.float64):
        self.server = Server(defense, num_clients, RATE, root_data)
        self.state = self.server.start(torch.from_numpy(START).to(dtype))
        self.models, self.oracle = [self.state.weights], oracle
        self.tolerance = 1e-9 if dtype == torch.float64 else 2e-4
        self.rounding = 1e-12  # of scores

    def arrive(self, client, lag, gradient):
        """One upload on the model of `lag` arrivals ago (or the first)."""
        now, weights = self.state.round, self.state.weights
        version = max(0, now - lag)
        base = self.models[version]
        update = torch.as_tensor(np.asarray(gradient)).to(base.dtype)
        self.state.ledger.lend(version, base)
        decision, self.state = self.server.receive(self.state, Upload(client, version, update))
        self.models.append(self.state.weights)
        g, w_base, w = (tensor.double().numpy() for tensor in (update, base, weights))
        verdict = bool(decision.accepted)
        seen = Seen(client, now, now - version, g, w_base, w, RATE, verdict)
        scores = dict(decision.scores)
        np.testing.assert_allclose(float(scores.pop(NORM)), np.linalg.norm(g), rtol=1e-5)
        self._compare(decision._replace(scores=scores), self.oracle.receive(seen))
        return decision

    def _compare(self, decision, outcome):
        assert bool(decision.accepted) == outcome.accepted
        assert bool(decision.ready) == outcome.stepped
        assert decision.scores.keys() == outcome.scores.keys()
        for name, expected in outcome.scores.items():
            found = float(decision.scores[name])
            np.testing.assert_allclose(found, expected, rtol=self.tolerance, atol=self.rounding)
        found, size = decision.direction.double().numpy(), np.abs(outcome.direction).max()
        np.testing.assert_allclose(
            found, outcome.direction, rtol=self.tolerance, atol=self.tolerance * size + 1e-12
        )

    def play(self, stream):
        """A drawn stream; the decisions."""
        return [self.arrive(*one) for one in self.uploads(stream)]

    def uploads(self, stream):
        """Client, lag and gradient of each item, the gradient on the model it answers to."""
        sent = {}
        for client, lag, kind, seed in stream:
            base = self.models[max(0, self.state.round - lag)].double().numpy()
            honest = HESSIAN * (base - CENTRES[client % len(CENTRES)])
            noise = np.random.default_rng(seed).normal(size=DIM)
            gradient = {
                "honest": honest + 0.05 * noise,
                "flipped": -honest,
                "loud": 300 * noise,
                "quiet": 1e-3 * noise,
                "zero": np.zeros(DIM),
                "again": sent.get(client, honest),
            }[kind]
            sent[client] = gradient
            yield client, lag, gradient


def streams(num_clients, min_size=1, max_size=60):
    """Who uploads what on how old a model: mostly honest; also stale, repeated and hostile."""
    kinds = ["honest"] * 6 + ["flipped", "flipped", "loud", "quiet", "zero", "again"]
    item = st.tuples(
        st.integers(0, num_clients - 1),
        st.integers(0, 6),
        st.sampled_from(kinds),
        st.integers(0, 10**6),
    )
    return st.lists(item, min_size=min_size, max_size=max_size)
