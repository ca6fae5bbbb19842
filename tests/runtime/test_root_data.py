import contextlib
import dataclasses
import functools

import pytest
import torch
from reference.tiny_task import TinyTask
from simulation.on_cpu import recorded_engine

from secureafl.core.errors import ConfigError
from secureafl.core.events import ArrivalEvent
from secureafl.core.flat_model import call_flat, flatten
from secureafl.core.types import RootData
from secureafl.experiment import Training, from_mapping
from secureafl.runtime.clients import Clients
from secureafl.runtime.root_data import RootDataset, draw_root_data
from secureafl.simulation.simulator import Simulation

TASK = TinyTask()
DATA = TASK.load()


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TASK.model()


@pytest.fixture
def clients(model):
    return Clients(TASK, DATA, model, Training())


def rows_of(trusted):
    """Which training samples they are."""
    own = trusted._samples.data.train_inputs
    return [int((DATA.train_inputs == image).flatten(1).all(dim=1).nonzero()) for image in own]


def test_samples_are_distinct_training_samples_with_their_own_labels(clients):
    trusted = draw_root_data(clients, 40, seed=0)
    assert isinstance(trusted, RootData)
    rows = rows_of(trusted)
    assert len(set(rows)) == 40
    assert torch.equal(trusted.labels, DATA.train_labels[rows])


def test_samples_depend_on_the_seed_alone_and_are_drawn_uniformly(clients):
    draws = [rows_of(draw_root_data(clients, 30, seed)) for seed in (0, 0, *range(1, 60))]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    counts = torch.bincount(torch.tensor(draws[1:]).flatten(), minlength=90)
    assert int(counts.min()) > 5  # twenty expected of each
    assert int(counts.max()) < 40


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 1), ("sum", 32)])
def test_gradient_is_the_mean_over_all_samples_times_the_scale_of_uploads(model, reduction, scale):
    clients = Clients(TASK, DATA, model, Training(reduction=reduction))
    trusted, weights = draw_root_data(clients, 25, seed=3), flatten(model)
    rows = rows_of(trusted)
    images = (DATA.train_inputs[rows].float() / 255 - DATA.pixel_mean) / DATA.pixel_std
    tape = weights.clone().requires_grad_()
    TASK.loss(call_flat(model, tape, images), DATA.train_labels[rows]).backward()
    found = trusted.gradient(weights)
    torch.testing.assert_close(found, scale * tape.grad, rtol=1e-4, atol=1e-6)
    assert not found.requires_grad
    outputs = trusted.outputs(weights)
    torch.testing.assert_close(outputs, call_flat(model, weights, images).detach())
    assert not outputs.requires_grad


def test_more_samples_than_there_are_is_refused(clients):
    with pytest.raises(ConfigError, match="root_samples = 91: the task has 90"):
        draw_root_data(clients, 91, seed=0)


def tiny(**changes):
    settings = {
        "clients": 6,
        "rounds": 12,
        "device": "cpu",
        "malicious": 2,
        "root_samples": 20,
        "task": "reference.tiny_task:TinyTask",
        "training": {"batch_size": 4, "learning_rate": 0.1},
    }
    return from_mapping(settings | changes)


def test_only_a_defence_that_needs_them_gets_trusted_samples():
    given = {
        kind: Simulation(tiny(defense=kind))._server.root_data for kind in ("zeno_pp", "kardam")
    }
    assert len(given["zeno_pp"].labels) == 20
    assert given["kardam"] is None


def test_attack_on_the_data_leaves_the_trusted_samples_clean():
    plain, attacked = (
        Simulation(tiny(defense="zeno_pp", attack=attack)) for attack in ("none", "label_flip")
    )
    for _ in range(12):
        attacked.advance()
    assert torch.equal(plain._server.root_data.labels, attacked._server.root_data.labels)
    weights = plain.weights
    one, other = (s._server.root_data.gradient(weights) for s in (plain, attacked))
    assert torch.equal(one, other)


@pytest.mark.parametrize("defense", ["aflguard", "zeno_pp", "sageflow"])
def test_summed_uploads_are_judged_like_mean_ones(defense):
    plain = tiny(defense=defense, attack="sign_flip", rounds=40)
    training = dataclasses.replace(plain.training, reduction="sum")
    runs = [Simulation(made) for made in (plain, dataclasses.replace(plain, training=training))]
    for _ in range(40):
        one, other = (
            [e.accepted for e in run.advance() if isinstance(e, ArrivalEvent)] for run in runs
        )
        assert one == other
    torch.testing.assert_close(runs[0].weights, runs[1].weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", [contextlib.nullcontext, recorded_engine])
@pytest.mark.parametrize(
    ("defense", "honest", "malicious"),
    # The step's own, and once for all that is asked about: Sageflow tries each of ten uploads too.
    [("aflguard", 1, 1 + 1), ("zeno_pp", 1, 1 + 1), ("sageflow", 2, 2 + 1 + 10)],
)
def test_all_uploads_asked_about_share_one_gradient(
    defense, honest, malicious, engine, monkeypatch
):
    computed = []
    for name in ("gradient", "outputs"):
        plain = getattr(RootDataset, name)
        counted = functools.partial(_counted, plain, computed)
        monkeypatch.setattr(RootDataset, name, functools.partialmethod(counted))
    with engine():
        simulation, found = Simulation(tiny(defense=defense, attack="adaptive", rounds=30)), []
        while not simulation.finished:
            events = simulation.advance()
            found += [(e.malicious, len(computed)) for e in events if isinstance(e, ArrivalEvent)]
            computed.clear()
    recorded = 15  # by then: the first calls of what is recorded try it
    assert len({is_malicious for is_malicious, _ in found[:recorded]}) == 2
    assert set(found[recorded:]) == {(False, honest), (True, malicious)}


def _counted(plain, computed, root_data, *given):
    computed.append(given)
    return plain(root_data, *given)


@pytest.mark.parametrize("count", [0, -5])
def test_number_of_samples_out_of_range_is_refused(count):
    with pytest.raises(ConfigError, match=f"root_samples = {count}"):
        tiny(root_samples=count)
