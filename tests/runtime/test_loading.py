"""Runs of a process that follow each other load a task's data once, and not one run more."""

from dataclasses import dataclass

import pytest
import torch
from reference.tiny_task import TinyTask
from simulation.small import run, tiny

from secureafl.runtime.loading import load_data, shared_data
from secureafl.simulation.simulator import Simulation

CPU = torch.device("cpu")
loads = []


@pytest.fixture(autouse=True)
def _count_from_nothing():
    loads.clear()


@dataclass(frozen=True)
class Counted(TinyTask):
    """Tells when it is loaded."""

    number: int = 0

    def load(self):
        loads.append(self.number)
        return super().load()


def test_without_sharing_every_run_loads():
    assert load_data(Counted(), CPU).on_cpu is not load_data(Counted(), CPU).on_cpu
    assert len(loads) == 2


def test_equal_tasks_share_their_data_until_another_comes():
    with shared_data():
        first, again = load_data(Counted(), CPU), load_data(Counted(), CPU)
        assert first is again
        load_data(Counted(number=1), CPU)
        load_data(Counted(), CPU)
    load_data(Counted(), CPU)
    assert loads == [0, 1, 0, 0]


def test_another_device_is_another_copy():
    with shared_data():
        load_data(Counted(), CPU)
        there = load_data(Counted(), torch.device("meta"))
    assert there.on_device.train_inputs.is_meta
    assert there.on_device.pixel_mean.is_meta
    assert len(loads) == 2


def test_task_that_fails_to_load_leaves_nothing_behind():
    class Broken(Counted):
        def load(self):
            raise OSError("gone")

    with shared_data():
        load_data(Counted(), CPU)
        with pytest.raises(OSError, match="gone"):
            load_data(Broken(), CPU)
        load_data(Counted(), CPU)
    assert loads == [0, 0]


@pytest.mark.parametrize("attack", ["label_flip", "scaling", "pgd"])
def test_runs_that_share_data_are_as_they_are_alone(attack):
    made = [tiny(attack=attack, defense=d, rounds=20) for d in ("sageflow", "secure_afl")]
    alone = [run(Simulation(one), 20) for one in made]
    with shared_data():
        together = [Simulation(one) for one in made]
        data = together[0].clients.data
        assert data.train_inputs is together[1].clients.data.train_inputs
        before = [tensor.clone() for tensor in (data.train_inputs, data.train_labels)]
        assert [run(one, 20) for one in together] == alone
    assert torch.equal(data.train_inputs, before[0])
    assert torch.equal(data.train_labels, before[1])
