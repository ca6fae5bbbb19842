"""Everything the contract tests run over, read off the package's own tables."""

import numpy as np
import torch

from secureafl.aggregators import AGGREGATORS
from secureafl.core.server import Server, Upload
from secureafl.core.traits import has_trait
from secureafl.defenses import (
    DEFENSES,
    Aflguard,
    AsyncDefender,
    Basgd,
    FedAsync,
    FedBuff,
    Kardam,
    SecureAfl,
    ZenoPp,
)
from secureafl.estimators import ESTIMATORS

# Every defence as it comes, every rule and estimator inside SecureAFL, and SecureAFL's options.
_ALL_CASES = {
    **{kind: cls() for kind, cls in DEFENSES.items()},
    **{f"estimator_{kind}": SecureAfl(estimator=cls()) for kind, cls in ESTIMATORS.items()},
    **{f"aggregator_{kind}": SecureAfl(aggregator=cls()) for kind, cls in AGGREGATORS.items()},
    "rejected_forget": SecureAfl(rejected="forget"),
    "rejected_reference": SecureAfl(rejected="reference"),
    "no_filter": SecureAfl(filter=False),
    "no_estimates": SecureAfl(estimate=False),
    "estimates_only": SecureAfl(use_received=False),
    "windowed": SecureAfl(window=8),
    "basgd_trimmed": Basgd(rule="trimmed_mean"),
    "credibility": AsyncDefender(credibility=True),
    "constant": FedAsync(weighting="constant"),
    "hinge": FedAsync(weighting="hinge"),
    "kardam_inverse": Kardam(dampening="inverse"),
    "zeno_pp_score": ZenoPp(form="score"),
}

# Defaults come up more than once; each value is tested under its first name.
DEFENSE_CASES = {
    name: value
    for place, (name, value) in enumerate(_ALL_CASES.items())
    if value not in list(_ALL_CASES.values())[:place]
}

# Rules inside SecureAFL owe the defence nothing new beside these kinds: by order, by choice, with
# trusted samples, with a memory, with draws of their own.
_USUAL = ("mean", "trimmed_mean", "krum", "fltrust", "foolsgold", "bucketing")
SLOW_CASES = {
    name
    for name in DEFENSE_CASES
    if name.startswith("aggregator_") and name.removeprefix("aggregator_") not in _USUAL
}

CLIENTS, DIM, RATE = 5, 7, 0.05

# Arrivals until honest clients are near their minimum; a step for every ten takes longer.
ENOUGH = {FedBuff: 450}
# Where honest uploads are alike enough for most to pass, if not in 80 arrivals of unlike clients:
# near the minimum every upload is far from the (vanishing) trusted gradient; and to Kardam, which
# compares clients with each other, unlike ones look like attackers.
ALIKE = {Aflguard: {"arrivals": 20}, Kardam: {"spread": 0.0}}


class HonestQuadratic:
    """RootData samples of the clients' own kind: one of each client's, labels taking turns.

    A sample's own class gains as the model comes near that client's centre.
    """

    def __init__(self, hessian, centres):
        self.hessian, self.centres = hessian, centres
        self.labels = torch.arange(len(centres), device=centres.device) % 3

    def gradient(self, weights):
        return self.hessian * (weights - self.centres.mean(dim=0))

    def outputs(self, weights):
        losses = (self.hessian * (weights - self.centres) ** 2).sum(dim=1) / 2
        own = torch.arange(3, device=losses.device) == self.labels[:, None]
        return torch.where(own, 3 - losses[:, None], 0)


def root_data_for(defense, hessian, centres):
    """What the server needs of it."""
    return HonestQuadratic(hessian, centres) if has_trait(defense, "needs_root_data") else None


class Driver:
    """A server with honest clients that share a quadratic loss, each with its own centre."""

    def __init__(self, defense, dtype=torch.float32, seed=0, noise=0.05, spread=0.3):
        self.noise, self.seed = noise, seed
        rng = np.random.default_rng(seed)
        self.centres = torch.from_numpy(1 + spread * rng.normal(size=(CLIENTS, DIM))).to(dtype)
        self.hessian = torch.from_numpy(rng.uniform(0.5, 2, DIM)).to(dtype)
        trusted = root_data_for(defense, self.hessian, self.centres)
        self.server = Server(defense, CLIENTS, RATE, trusted)
        self.state = self.server.start(torch.from_numpy(rng.normal(size=DIM)).to(dtype))
        self.models = [(0, self.state.weights)]  # (version, weights) after each arrival

    def receive(self, client, version, update, base=None):
        """Any upload; with a `base`, one answer to it is expected first."""
        if base is not None:
            self.state.ledger.lend(version, base)
        decision, self.state = self.server.receive(self.state, Upload(client, version, update))
        self.models.append((self.state.round, self.state.weights))
        return decision

    def honest(self, number, newest_only_before=0):
        """The number-th honest arrival; who, how stale and which noise depend on it alone.

        No model from before the arrival `newest_only_before` is answered to, so that staleness
        does not depend on refused uploads that came just then.
        """
        rng = np.random.default_rng((self.seed, number))
        client, lag = int(rng.integers(CLIENTS)), int(rng.integers(3))
        lag = max(0, min(lag, number - newest_only_before))
        version, base = self.models[-1 - lag]
        noise = torch.from_numpy(self.noise * rng.normal(size=DIM)).to(base.dtype)
        update = self.hessian * (base - self.centres[client]) + noise
        return self.receive(client, version, update, base)


def same_decision(one, other):
    """Whether two decisions agree in every bit, undefined scores included."""
    return (
        bool(one.accepted) == bool(other.accepted)
        and bool(one.ready) == bool(other.ready)
        and torch.equal(one.direction, other.direction)
        and one.scores.keys() == other.scores.keys()
        and all(
            torch.equal(one.scores[k].nan_to_num(nan=-1.0), other.scores[k].nan_to_num(nan=-1.0))
            for k in one.scores
        )
    )
