"""The memory of a run, estimated before it is taken."""

import numpy as np
import pytest
import torch
from simulation.small import tiny

from secureafl.core import memory as host
from secureafl.core.errors import ConfigError
from secureafl.core.flat_model import flatten
from secureafl.core.trees import name_tensors
from secureafl.defenses import DEFENSES, AsyncSgd, TrustClipping
from secureafl.runtime import memory
from secureafl.runtime.memory import estimate_memory
from secureafl.simulation.simulator import Simulation


@pytest.fixture(params=[0, 10**6], ids=["without_values", "for_real"])
def _both_ways(request, monkeypatch):
    """States of any size are made without their values, or for real."""
    monkeypatch.setattr(memory, "_LITTLE", request.param)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("kind", DEFENSES)
def test_estimate_of_what_a_defence_remembers_is_what_it_takes(kind):
    defense, size = DEFENSES[kind](), 1000
    state = defense.init(7, torch.zeros(size))
    taken = sum(tensor.nbytes for tensor in name_tensors(state, "").values())
    assert estimate_memory(defense, 7, size, np.zeros(3, int)).server == taken


def test_models_that_clients_still_train_on_are_counted():
    def models(*versions):
        return estimate_memory(AsyncSgd(), 2, 1000, np.array(versions)).models / 4000

    alone = models(0, 1, 2, 3)
    assert models(0, 0, 0, 0) == alone  # one that is kept
    assert models(0, 1, 1, 0) == alone + 1
    assert models(0, 1, 2, 0, 1) == alone + 2


def test_run_that_would_not_fit_is_refused_before_its_state_is_made(monkeypatch):
    wanted = Simulation(tiny()).memory
    assert wanted.total > 4 * flatten(tiny().task.model()).numel()
    monkeypatch.setattr(memory, "free_memory", lambda: wanted.total - 1)
    monkeypatch.setattr("secureafl.core.server.Server.start", lambda *parts: pytest.fail("begun"))
    with pytest.raises(ConfigError, match=r"of memory, .* are free; give fewer clients") as caught:
        Simulation(tiny())
    assert "\n" not in str(caught.value)


def test_gradients_that_an_attack_may_know_are_counted():
    def known(attack):
        return Simulation(tiny(attack=attack)).memory.attack

    assert known("sign_flip") == 0
    assert known("alie") == 6 * 4 * flatten(tiny().task.model()).numel()


def test_schedule_that_would_not_fit_is_refused_before_anything_is_drawn_or_loaded(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 12 * 300)
    made = tiny()
    monkeypatch.setattr(type(made.task), "load", lambda self: pytest.fail("loaded"))
    said = r"rounds = 1000000: the schedule needs about \d+ MB of memory, .*; give fewer rounds"
    with pytest.raises(ConfigError, match=said) as caught:
        Simulation(tiny(rounds=10**6))
    assert "\n" not in str(caught.value)


def test_table_of_gradients_that_would_not_fit_is_refused_before_it_is_made(monkeypatch):
    wanted = Simulation(tiny(attack="alie")).memory
    monkeypatch.setattr(memory, "refuse_too_long", lambda made: None)
    monkeypatch.setattr(memory, "free_memory", lambda: wanted.total - 1)
    monkeypatch.setattr(
        "secureafl.simulation.simulator.Attackers", lambda *parts: pytest.fail("made")
    )
    with pytest.raises(ConfigError, match="of memory"):
        Simulation(tiny(attack="alie"))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((3, 2, 1), "the defence with its clients needs .*; .* a defence that remembers less"),
        ((2, 3, 1), "the model needs"),
        ((2, 1, 3), "what the attack knows of the clients needs .*; .* an attack that knows less"),
    ],
)
def test_what_needs_most_is_named(sizes, said, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1)
    with pytest.raises(ConfigError, match=said):
        memory.refuse_too_large(memory.MemoryEstimate(*sizes), torch.device("cpu"))


def test_free_memory_is_that_of_the_machine_or_of_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    assert host.free_memory() == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  2048 kB\n")
    assert host.free_memory() == 2048 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert host.free_memory() == 2048 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert host.free_memory() == 4000


def test_sizes_are_told_for_people():
    sizes = (12, 1500, 2_340_000, 81_250_000_000, 10**15)
    assert [host.in_words(size) for size in sizes] == [
        "12 bytes", "2 kB", "2 MB", "81.2 GB", "1,000,000.0 GB",
    ]  # fmt: skip


@pytest.mark.usefixtures("_both_ways")
def test_estimate_leaves_the_callers_random_numbers_alone():
    """Of what `trust_clipping` draws for an estimate nothing is kept."""
    before = torch.get_rng_state()
    estimate_memory(TrustClipping(), 7, 1000, np.zeros(3, int))
    assert torch.equal(torch.get_rng_state(), before)
