"""Malicious clients that are faster than others, in a run."""

import numpy as np
import pytest
from simulation.small import run, tiny

from secureafl.core.events import ArrivalEvent
from secureafl.simulation.simulator import Simulation


def arrivals_of(**changes):
    """Clients and whether they are malicious, arrival by arrival."""
    simulation = Simulation(tiny(**{"rounds": 200, "attack": "sign_flip"} | changes))
    events = [e for e in run(simulation, 200) if isinstance(e, ArrivalEvent)]
    malicious = simulation.malicious[[event.client for event in events]]
    return simulation.trace.client, malicious


@pytest.mark.parametrize("kind", ["uniform", "event_driven"])
def test_malicious_clients_are_those_that_are_fast(kind):
    _, usual = arrivals_of(arrivals={"kind": kind})
    _, fast = arrivals_of(arrivals={"kind": kind, "malicious_pace": 20.0})
    assert usual.mean() < 0.6
    assert fast.mean() > 0.8


def test_malicious_clients_are_those_that_come_first():
    _, malicious = arrivals_of(arrivals={"kind": "uniform", "malicious_first": 2})
    assert malicious[:4].all()
    assert not malicious[4:].all()


def test_without_attack_nobody_is_fast():
    usual, _ = arrivals_of(attack="none")
    same, malicious = arrivals_of(attack="none", arrivals={"kind": "uniform", "malicious_pace": 20})
    assert np.array_equal(usual, same)
    assert not malicious.any()
