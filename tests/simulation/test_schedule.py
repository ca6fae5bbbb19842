"""The learning rate that a schedule gives a run, wherever a rate is used."""

import pytest
import torch
from simulation.on_cpu import recorded_engine
from simulation.small import ROUNDS, run, tiny

from secureafl.core.errors import ConfigError
from secureafl.experiment import Training
from secureafl.simulation.simulator import Simulation

RATE = 0.3 / ROUNDS**0.5
NORMED = "reference.tiny_task:TinyNormed"


def weights_after(attack, defense, **training):
    given = {"batch_size": 4, "local_steps": 2, **training}
    simulation = Simulation(tiny(task=NORMED, attack=attack, defense=defense, training=given))
    run(simulation)
    return simulation.weights


@pytest.mark.parametrize("attack", ["none", "pgd"])  # pgd trains further at the rate it is shown
@pytest.mark.parametrize("defense", ["secure_afl", "fed_async"])
def test_horizon_is_a_run_at_the_rate_of_its_length(attack, defense):
    made = weights_after(attack, defense, learning_rate=0.2, schedule="horizon", horizon_scale=0.3)
    assert torch.equal(made, weights_after(attack, defense, learning_rate=RATE))
    assert not torch.equal(made, weights_after(attack, defense, learning_rate=0.2))


def test_recorded_rounds_step_at_the_rate_of_the_horizon():
    given = {"learning_rate": 0.2, "schedule": "horizon", "horizon_scale": 0.3}
    with recorded_engine():
        recorded = weights_after("none", "async_sgd", **given)
    assert torch.equal(recorded, weights_after("none", "async_sgd", learning_rate=RATE))


def test_horizon_never_lengthens_a_step():
    training = Training(learning_rate=0.1, schedule="horizon")
    assert training.over(99).learning_rate == 0.1
    assert training.over(400).learning_rate == 0.05


def test_scale_that_gives_no_rate_is_refused():
    with pytest.raises(ConfigError, match="horizon_scale = 0"):
        Training(schedule="horizon", horizon_scale=0)
