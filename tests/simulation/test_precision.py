"""The precision of layers: a matter of GPUs, and of nothing but the clients' gradients."""

import pytest
import torch
from simulation.small import run, tiny

from secureafl.core.errors import ConfigError
from secureafl.experiment import Training, from_mapping
from secureafl.simulation.simulator import Simulation

NORMED = "reference.tiny_task:TinyNormed"
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def weights_after(precision, **changes):
    training = {"batch_size": 4, "precision": precision}
    simulation = Simulation(tiny(task=NORMED, training=training, **changes))
    run(simulation)
    return simulation.weights


def test_a_cpu_computes_in_float32_either_way():
    assert torch.equal(weights_after("bfloat16"), weights_after("float32"))


@on_gpu
def test_a_gpu_computes_in_it_and_comes_close():
    mixed, plain = (weights_after(p, device="cuda") for p in ("bfloat16", "float32"))
    assert mixed.dtype == torch.float32
    assert 0 < float((mixed - plain).norm()) < 0.05 * float(plain.norm())


@on_gpu
def test_a_model_is_judged_in_float32():
    training = {"batch_size": 4, "precision": "bfloat16"}
    runs = [Simulation(tiny(task=NORMED, training=t, device="cuda")) for t in (training, {})]
    weights = runs[0].weights
    mixed, plain = (one.clients.test_outputs(weights) for one in runs)
    assert torch.equal(mixed, plain)


@on_gpu
def test_the_same_bits_at_every_run():
    first, second = (weights_after("bfloat16", device="cuda") for _ in range(2))
    assert torch.equal(first, second)


def test_other_precisions_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"precision.*'float16'.*bfloat16"):
        from_mapping({"training": {"precision": "float16"}})


def test_what_is_not_said_is_float32():
    assert Training().precision == "float32"
