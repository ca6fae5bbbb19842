"""The simulator with the compiled server step, which small problems would not use."""

import pytest
import torch
from stepping import always_compiled, always_plain

from secureafl import from_mapping
from secureafl.core.errors import ConfigError
from secureafl.kernels.dispatch import version_for
from secureafl.simulation.simulator import Simulation

pytest.importorskip("llvmlite")

EXPERIMENT = {
    "rounds": 40,
    "clients": 6,
    "attack": "gaussian",
    "task": {"kind": "reference.tiny_task:TinyTask"},
    "training": {"batch_size": 4},
    "evaluation": {"every": 1000, "late": 1},
}
DEFENSES = {
    "lbfgs": "secure_afl",
    "history_mean": {"kind": "secure_afl", "estimator": {"kind": "history_mean", "length": 2}},
    "trimmed_mean": {"kind": "secure_afl", "aggregator": "trimmed_mean"},
    "no_estimates": {"kind": "secure_afl", "estimate": False},
    "forget": {"kind": "secure_afl", "rejected": "forget"},
}
for_every_defense = pytest.mark.parametrize("defense", DEFENSES.values(), ids=DEFENSES.keys())


def start(defense, kernels="auto"):
    changes = {"defense": defense, "kernels": kernels, "device": "cpu"}
    return Simulation(from_mapping(EXPERIMENT | changes))


def finished(simulation):
    events = []
    while not simulation.finished:
        events += simulation.advance()
    return events, simulation.weights


@for_every_defense
def test_restored_run_ends_with_the_same_bits(defense):
    with always_compiled():
        events, weights = finished(start(defense))
        stopped, snapshots = start(defense), {}
        for number in range(40):
            if number in (1, 13, 39):
                copies = {name: array.copy() for name, array in stopped.snapshot().items()}
                snapshots[number] = copies
            stopped.advance()
        for snapshot in snapshots.values():
            resumed = start(defense)
            resumed.restore(snapshot)
            later, found = finished(resumed)
            assert torch.equal(found, weights)
            assert later == events[-len(later) :]


@for_every_defense
def test_compiled_run_follows_the_plain_one(defense):
    with always_compiled():
        _, compiled = finished(start(defense))
    with always_plain():
        _, plain = finished(start(defense, "reference"))
    assert torch.allclose(compiled, plain, rtol=1e-3, atol=1e-4)


def test_compiled_run_is_the_same_every_time_and_whether_asked_for_or_found():
    with always_compiled():
        events, weights = finished(start("secure_afl"))
        for kernels in ("auto", "cpu"):
            again, same = finished(start("secure_afl", kernels))
            assert events == again
            assert torch.equal(weights, same)


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_run_computes_with_the_version_it_is_set_to(kernels):
    with start("secure_afl", kernels).compute:
        assert version_for(torch.zeros(1)).__name__ == f"secureafl.kernels.{kernels}"


def test_run_on_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"kernels = 'gpu'.*auto"):
        start("secure_afl", "gpu")


def test_version_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="kernels"):
        from_mapping(EXPERIMENT | {"kernels": "tpu"})
