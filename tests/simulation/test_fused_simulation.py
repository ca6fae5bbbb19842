"""The simulator with the compiled server step, which small problems would not use."""

import pytest
import torch

from secureafl import from_mapping
from secureafl.kernels import fused
from secureafl.simulation.simulator import Simulation

pytest.importorskip("numba")

EXPERIMENT = {
    "rounds": 40,
    "clients": 6,
    "attack": "gaussian",
    "task": {"kind": "reference.tiny_task:TinyTask"},
    "training": {"batch_size": 4},
    "evaluation": {"every": 1000, "late": 1},
}


@pytest.fixture(autouse=True)
def _always_fused(monkeypatch):
    monkeypatch.setattr(fused, "_WORTH_IT", 0)


def finished(simulation):
    events = []
    while not simulation.finished:
        events += simulation.advance()
    return events, simulation.weights


@pytest.mark.parametrize("stop", [1, 13, 39])
def test_restored_run_ends_with_the_same_bits(stop):
    events, weights = finished(Simulation(from_mapping(EXPERIMENT)))
    stopped = Simulation(from_mapping(EXPERIMENT))
    for _ in range(stop):
        stopped.advance()
    resumed = Simulation(from_mapping(EXPERIMENT))
    resumed.restore(stopped.snapshot())
    later, found = finished(resumed)
    assert torch.equal(found, weights)
    assert later == events[-len(later) :]


def test_compiled_step_follows_the_plain_one(monkeypatch):
    _, compiled = finished(Simulation(from_mapping(EXPERIMENT)))
    monkeypatch.setattr(fused, "_WORTH_IT", 1 << 62)
    _, plain = finished(Simulation(from_mapping(EXPERIMENT)))
    assert torch.allclose(compiled, plain, rtol=1e-3, atol=1e-4)
