"""Kernels and threads belong to a run, not to the process."""

import threading

import pytest
import torch
from simulation.small import run, tiny
from simulation.spies import Surroundings
from stepping import threads

from secureafl.core.errors import ConfigError
from secureafl.kernels import reference
from secureafl.kernels.dispatch import using_kernels, version_for
from secureafl.runtime.devices import ComputeContext, choose_device
from secureafl.simulation.simulator import Simulation

HERE = torch.zeros(3)


@pytest.fixture(autouse=True)
def _one_thread():
    pytest.importorskip("llvmlite")
    Surroundings.seen.clear()
    with threads(1):
        yield


def watched(name, **changes):
    defense = {"kind": "simulation.spies:Surroundings", "name": name}
    return Simulation(tiny(defense=defense, forget_after=2, **changes))


def test_runs_that_take_turns_keep_their_kernels_and_threads():
    runs = [watched("plain", kernels="reference", threads=2), watched("own", kernels="cpu")]
    runs.append(watched("late", kernels="reference", threads=3))
    while not runs[0].finished:
        for one in runs:
            one.advance()
    assert Surroundings.seen == {
        "plain": {("reference", 2)},
        "own": {("cpu", 1)},
        "late": {("reference", 3)},
    }


def test_run_leaves_the_process_as_it_was():
    before = version_for(HERE)
    simulation = watched("one", kernels="reference", threads=2)
    assert (version_for(HERE), torch.get_num_threads()) == (before, 1)
    simulation.advance()
    assert (version_for(HERE), torch.get_num_threads()) == (before, 1)
    restored = watched("two", kernels="reference", threads=2)
    restored.restore(simulation.snapshot())
    run(restored)
    assert (version_for(HERE), torch.get_num_threads()) == (before, 1)
    assert before is not reference


def test_failed_run_leaves_the_process_as_it_was(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        Simulation(tiny(device="cuda", threads=2, kernels="reference"))
    assert torch.get_num_threads() == 1
    assert version_for(HERE) is not reference


def test_attack_asks_the_defence_with_the_kernels_of_the_run():
    attack = {"kind": "simulation.spies:Asking"}
    runs = [watched(n, kernels=k, attack=attack) for n, k in (("a", "reference"), ("b", "cpu"))]
    Surroundings.seen.clear()
    while not runs[0].finished:
        for one in runs:
            one.advance()
    assert Surroundings.seen == {
        "a": {("reference", 1)},
        "b": {("cpu", 1)},
        "asked by a": {("reference", 1)},
        "asked by b": {("cpu", 1)},
    }


def test_context_can_be_entered_again_and_inside_itself():
    context, other = ComputeContext(2, "reference"), ComputeContext(3, "cpu")
    for _ in range(2):
        with context, other, context:
            assert (version_for(HERE), torch.get_num_threads()) == (reference, 2)
        assert torch.get_num_threads() == 1
        assert version_for(HERE) is not reference


def test_zero_threads_are_those_of_the_process():
    with threads(2), ComputeContext(0):
        assert torch.get_num_threads() == 2


def test_another_thread_chooses_for_itself():
    found = []
    with using_kernels("reference"):
        other = threading.Thread(target=lambda: found.append(version_for(HERE)))
        other.start()
        other.join()
        assert version_for(HERE) is reference
    assert found[0] is not reference


def test_gpu_is_chosen_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    with pytest.raises(ConfigError, match="no such GPU; torch sees 2 here, numbered from 0"):
        choose_device("cuda:2")
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cpu:0"):
        with pytest.raises(ConfigError, match="such as cuda:1"):
            tiny(device=name)


def test_context_makes_its_gpu_the_current_one_and_puts_back_the_other(monkeypatch):
    current = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    second, third = (ComputeContext(0, device=torch.device("cuda", n)) for n in (1, 2))
    with second, third, second, ComputeContext(0, device=torch.device("cuda")):
        assert current[-1] == 1
    assert current == [0, 1, 2, 1, 2, 1, 0]
