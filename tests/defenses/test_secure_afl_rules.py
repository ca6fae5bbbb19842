"""SecureAFL with rules that ask for more than the updates of the clients."""

import numpy as np
import pytest
import torch
from reference.fltrust import fltrust
from reference.geometric_median import geometric_median
from reference.secure_afl import SecureAflServer

from secureafl.aggregators import Bucketing, FlTrust, GeometricMedian, Krum, Median, Rflbat
from secureafl.core.errors import ConfigError
from secureafl.core.server import Server, Upload
from secureafl.core.traits import has_trait
from secureafl.defenses import SecureAfl
from secureafl.estimators import LastUpdate

CLIENTS, DIM, RATE = 6, 4, 0.05


class TowardsOne:
    """Root data whose gradient tells which model it was taken at."""

    labels = torch.zeros(1, dtype=torch.int64)

    def gradient(self, weights, rows=None):
        return weights - 1

    def outputs(self, weights):
        raise AssertionError("nobody asked for outputs")


def uploads(count):
    """Client and update, drawn once; every answer is to the current model."""
    rng = np.random.default_rng(0)
    return [(int(rng.integers(CLIENTS)), 0.3 - rng.normal(size=DIM)) for _ in range(count)]


def compare(aggregator, trusted, rule):
    """Run both servers side by side; `rule` makes the oracle's aggregate from rows and model."""
    defense = SecureAfl(filter=False, estimator=LastUpdate(), aggregator=aggregator)
    server = Server(defense, CLIENTS, RATE, trusted)
    state = server.start(torch.zeros(DIM, dtype=torch.float64))
    oracle = SecureAflServer(
        np.zeros(DIM),
        RATE,
        estimate_one=lambda sent, _: sent[-1][0],
        aggregate=lambda rows: rule(rows, oracle.weights),
        use_filter=False,
    )
    for version, (client, update) in enumerate(uploads(40)):
        state.ledger.lend(version, state.weights)
        _, state = server.receive(state, Upload(client, version, torch.from_numpy(update)))
        oracle.receive(client, version, update)
        np.testing.assert_allclose(state.weights.numpy(), oracle.weights, rtol=1e-9, atol=1e-12)


def test_fltrust_is_given_the_root_gradient_at_the_current_model():
    compare(FlTrust(), TowardsOne(), lambda rows, weights: fltrust(rows, weights - 1))


def test_rule_that_needs_no_trusted_samples_does_without():
    compare(GeometricMedian(), None, lambda rows, _: geometric_median(rows, 8, 1e-6))


def first_arrival(defense):
    server = Server(defense, CLIENTS, RATE)
    state = server.start(torch.zeros(DIM))
    state.ledger.lend(0, state.weights)
    return server.receive(state, Upload(0, 0, torch.ones(DIM)))


def test_fltrust_without_trusted_samples_is_refused():
    with pytest.raises(ConfigError, match="root data"):
        first_arrival(SecureAfl(aggregator=FlTrust()))


@pytest.mark.parametrize(
    ("rule", "needs_root_data", "on_host"),
    [
        (Median(), False, False),
        (Krum(), False, False),
        (FlTrust(), True, False),
        (Rflbat(), False, True),
        (Bucketing(FlTrust()), True, False),
        (Bucketing(Bucketing(Rflbat())), False, True),
    ],
)
def test_defence_says_what_its_rule_asks_for(rule, needs_root_data, on_host):
    defense = SecureAfl(aggregator=rule)
    assert has_trait(defense, "needs_root_data") is needs_root_data
    assert has_trait(defense, "on_host") is on_host
