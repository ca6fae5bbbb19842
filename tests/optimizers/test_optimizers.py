"""Server optimisers against their formulas, and what they may do to a model."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from reference.optimizers import Adaptive
from reference.optimizers import Sgd as SgdOracle
from safetensors.torch import load_file
from simulation.on_cpu import recorded_engine
from simulation.small import run, tiny

from secureafl.cli.listing import about
from secureafl.core.errors import ConfigError, RunError
from secureafl.core.schedule import Schedule
from secureafl.core.server import LARGEST_NORM
from secureafl.defenses import AsyncSgd, FedBuff, SecureAfl
from secureafl.estimators import Lbfgs
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.kernels.tiles import products
from secureafl.optimizers import OPTIMIZERS, Adagrad, Adam, Sgd, Yogi
from secureafl.presentation.labels import label_runs
from secureafl.runtime.memory import estimate_memory
from secureafl.runtime.setup import make_server
from secureafl.simulation.run import resume_run, start_run
from secureafl.simulation.simulator import Simulation
from secureafl.sweep.grid import Grid
from secureafl.testing.driver import CLIENTS, Driver
from secureafl.toml import write_toml

SIZE = 6
CASES = [
    Sgd(0.3),
    Sgd(0.3, momentum=0.8),
    Adagrad(0.1),
    Adagrad(0.1, beta1=0.5),
    Adam(0.1),
    Adam(0.02, beta1=0.0, beta2=0.5, adaptivity=0.1),
    Yogi(0.1),
]
every_case = pytest.mark.parametrize("optimizer", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", OPTIMIZERS)


def oracle(optimizer):
    given = dataclasses.asdict(optimizer)
    if isinstance(optimizer, Sgd):
        return SgdOracle(SIZE, **given)
    return Adaptive(type(optimizer).__name__.lower(), SIZE, **given)


def steps(count, seed=3):
    """Steps whose coordinates are of very different sizes, some of them 0."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** np.arange(-4, SIZE - 4)
    return [sizes * rng.normal(size=SIZE) * (rng.random(SIZE) < 0.8) for _ in range(count)]


@every_case
def test_moves_are_those_of_the_formulas(optimizer):
    other, state = oracle(optimizer), optimizer.init(torch.zeros(SIZE, dtype=torch.float64))
    for step in steps(30):
        move, state = optimizer.move(state, torch.from_numpy(step))
        np.testing.assert_allclose(move.numpy(), other.move(step), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("optimizer", [Adam(0.1), Yogi(0.1), Adagrad(0.1)], ids=str)
def test_bounds_of_the_docs_hold(optimizer):
    state, longest = optimizer.init(torch.zeros(SIZE, dtype=torch.float64)), 0.0
    rng = np.random.default_rng(1)
    for number in range(400):
        step = rng.normal(size=SIZE) * 10.0 ** rng.uniform(-6, 2)
        step = np.full(SIZE, 50.0) if number % 97 == 0 else step  # after a quiet time
        longest = max(longest, float(np.linalg.norm(step)))
        move, state = optimizer.move(state, torch.from_numpy(step))
        assert float(move.norm()) <= optimizer.learning_rate / optimizer.adaptivity * longest
        if isinstance(optimizer, Adam):
            ratio = (1 - 0.81 / 0.99) * 0.01
            assert float(move.abs().max()) <= 0.1 * 0.1 / math.sqrt(ratio)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("sgd", {"learning_rate": 0}, r"server_optimizer\.learning_rate = 0.*above 0"),
        ("sgd", {"momentum": 1.0}, r"server_optimizer\.momentum = 1\.0"),
        ("adam", {"beta2": -0.1}, r"server_optimizer\.beta2 = -0\.1"),
        ("yogi", {"adaptivity": 0}, r"server_optimizer\.adaptivity = 0"),
        ("adma", {}, "unknown server_optimizer 'adma'; did you mean 'adam'"),
    ],
)
def test_wrong_settings_are_told(kind, settings, said):
    with pytest.raises(ConfigError, match=said):
        from_mapping({"server_optimizer": {"kind": kind, **settings}})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"warmup": -1}, r"server_schedule\.warmup = -1"),
        ({"warmup": 5, "rounds": 5}, r"server_schedule\.rounds = 5.*more than warmup"),
        ({"final": 2}, r"server_schedule\.final = 2"),
        ({"shape": "step"}, r"server_schedule\.shape = 'step'.*cosine"),
    ],
)
def test_wrong_schedules_are_told(settings, said):
    with pytest.raises(ConfigError, match=said):
        from_mapping({"server_schedule": settings})


def factors(schedule, rounds):
    return [float(schedule.factor(torch.tensor(now))) for now in range(rounds + 1)]


def test_schedules_rise_and_fall_as_they_say():
    assert factors(Schedule(), 3) == [1, 1, 1, 1]
    assert factors(Schedule(warmup=4), 5) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert factors(Schedule("linear", final=0.5).over(4), 5) == [1, 0.875, 0.75, 0.625, 0.5, 0.5]
    cosine = factors(Schedule("cosine", final=0.2).over(8), 8)
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * k / 8)) / 2 for k in range(9)]
    np.testing.assert_allclose(cosine, expected, atol=1e-15)
    assert Schedule("linear", rounds=7).over(100).rounds == 7


# What a server does with one.


def driver(optimizer, defense=None, **more):
    made = Driver(defense or AsyncSgd())
    made.server = made.server._replace(optimizer=optimizer, **more)
    made.state = made.server.start(made.state.weights)
    return made


@every_kind
@pytest.mark.parametrize("bad", [torch.nan, 1e19])
def test_refused_upload_moves_neither_the_model_nor_the_optimizer(kind, bad):
    one, other = driver(OPTIMIZERS[kind]()), driver(OPTIMIZERS[kind]())
    for number in range(12):
        one.honest(number)
        other.honest(number)
    before = one.state
    for client in range(CLIENTS):
        update = torch.full_like(before.weights, bad)
        one.receive(client, before.round, update, before.weights)
        assert torch.equal(one.state.weights, before.weights), "momentum must not coast"
    one.honest(12, newest_only_before=12)
    other.honest(12, newest_only_before=12)
    assert torch.equal(one.state.weights, other.state.weights)


def test_momentum_does_not_coast_while_a_buffer_fills():
    made = driver(Sgd(1.0, momentum=0.9), FedBuff(buffer_size=4))
    moved = []
    for number in range(12):
        before = made.state.weights
        made.honest(number)
        moved.append(not torch.equal(made.state.weights, before))
    assert moved == [False, False, False, True] * 3


def test_move_that_no_model_stands_is_not_made():
    made = driver(Sgd(100.0))
    before, size = made.state.weights, LARGEST_NORM / 3
    decision = made.receive(0, 0, torch.full_like(before, size), before)
    assert decision.accepted
    assert not decision.ready
    assert torch.equal(made.state.weights, before)


def test_statistics_move_as_the_defence_asks():
    made = driver(Adam(), statistics=2)
    weights, update = made.state.weights, torch.ones_like(made.state.weights)
    made.receive(0, 0, update, weights)
    moved = weights - made.state.weights
    torch.testing.assert_close(moved[-2:], made.server.learning_rate * update[-2:])
    assert (moved[:-2] - made.server.learning_rate).abs().min() > 1e-3
    assert made.state.optimizer.mean.numel() == weights.numel() - 2


SEEN = []


@dataclasses.dataclass(frozen=True)
class Watched(Lbfgs):
    """Notes the inner products that shares are chosen from."""

    def shares(self, notes, inner):
        SEEN.append(inner._replace(model=inner.model.clone(), squared=inner.squared.clone()))
        return super().shares(notes, inner)


@pytest.mark.parametrize("optimizer", [Sgd(0.5), Sgd(0.5, momentum=0.9), Adam()], ids=str)
def test_estimates_are_made_for_the_model_that_there_is(optimizer):
    made = driver(optimizer, SecureAfl(estimator=Watched()))
    for number in range(30):
        weights, vectors = made.state.weights, made.state.defense.memory.vectors.clone()
        made.honest(number)
        torch.testing.assert_close(SEEN[-1].model, products(vectors, weights))
        torch.testing.assert_close(SEEN[-1].squared, weights.double() @ weights.double())


def test_default_is_no_optimizer_at_all():
    model = torch.nn.Linear(2, 2)
    assert make_server(Experiment(), model, None).optimizer is None
    made = from_mapping({"server_optimizer": {"kind": "sgd", "learning_rate": 1}})
    assert made == Experiment()
    made = from_mapping({"server_schedule": {"shape": "cosine"}, "rounds": 30})
    server = make_server(made, model, None)
    assert server.optimizer == Sgd()
    assert server.schedule.rounds == 30


def test_memory_of_an_optimizer_is_estimated():
    def models(optimizer):
        return estimate_memory(AsyncSgd(), 2, 1000, np.zeros(3, int), optimizer).models

    assert models(Sgd()) == models(None)
    assert models(Sgd(momentum=0.9)) - models(None) == 4000
    assert models(Adam()) - models(None) == 8000


def test_runs_are_told_apart_by_their_optimizers():
    optimizers = ["sgd", {"kind": "adam", "beta2": 0.9}, {"kind": "adam", "beta2": 0.8}]
    runs = [to_mapping(tiny(defense="async_sgd", server_optimizer=one)) for one in optimizers]
    assert [found.variant for found in label_runs(runs)] == [
        "async_sgd (server_optimizer=sgd)",
        "async_sgd (server_optimizer=adam, beta2=0.9)",
        "async_sgd (server_optimizer=adam, beta2=0.8)",
    ]


def test_change_of_a_setting_goes_to_the_cells_whose_optimizer_has_it():
    grid = Grid("", {"defense": "async_sgd"}, {"server_optimizer": ["sgd", "adam"]})
    cells = grid.cells({"server_optimizer.momentum": 0.5})
    assert [cell.server_optimizer for cell in cells.values()] == [Sgd(momentum=0.5), Adam()]
    assert [*cells] == ["sgd", "adam"]


@every_kind
def test_optimizer_is_listed_with_its_citation(kind):
    found = about(OPTIMIZERS[kind])
    assert kind in found.title.lower()
    assert found.citation
    assert "learning_rate" in found.settings


# Whole runs.

COSINE = {"shape": "cosine", "warmup": 3}


@every_kind
@pytest.mark.parametrize("defense", ["async_sgd", "secure_afl", "trust_clipping"])
def test_run_restored_at_any_round_goes_on_with_the_same_bits(kind, defense):
    optimizer = {"kind": kind, **({"momentum": 0.9} if kind == "sgd" else {})}
    made = tiny(
        server_optimizer=optimizer, server_schedule=COSINE, defense=defense, attack="sign_flip"
    )
    whole = Simulation(made)
    snapshots = [whole.snapshot() for _ in range(12) if whole.advance()]
    assert any(name.startswith("optimizer") for name in snapshots[0])
    for snapshot in snapshots[::4]:
        other = Simulation(made)
        other.restore(snapshot)
        run(other)
        assert torch.equal(other.weights, whole.weights)


@every_kind
def test_recorded_round_is_the_one_at_once(kind):
    made = tiny(server_optimizer=kind, server_schedule=COSINE, defense="secure_afl")
    plain = Simulation(made)
    with recorded_engine():
        recorded = Simulation(made)
        assert run(recorded) == run(plain)
        left = recorded.snapshot()
    assert torch.equal(recorded.weights, plain.weights)
    for name, array in plain.snapshot().items():
        assert np.array_equal(array, left[name]), name


def test_checkpoint_without_an_optimizers_state_is_refused():
    plain = Simulation(tiny())
    with pytest.raises(RunError, match=r"lacks 'optimizer\.mean'"):
        Simulation(tiny(server_optimizer="adam")).restore(plain.snapshot())


def test_unfinished_run_of_a_version_without_optimizers_goes_on(tmp_path):
    made, path = tiny(), tmp_path / "run"
    recording = iter(start_run(made, path, 1e9))
    for _ in range(4):
        next(recording)
    recording.close()
    settings = {k: v for k, v in to_mapping(made).items() if not k.startswith("server_")}
    (path / "experiment.toml").write_text(write_toml(settings))
    facts = json.loads((path / "provenance.json").read_text())
    facts["sessions"][0]["secureafl"] = "0.1.0"
    (path / "provenance.json").write_text(json.dumps(facts))
    for _ in resume_run(path, 1e9):
        pass
    (_, session) = json.loads((path / "provenance.json").read_text())["sessions"]
    assert session["settings_added"].keys() == {"server_optimizer", "server_schedule"}
    whole = Simulation(made)
    run(whole)
    trained = load_file(path / "model.safetensors")
    found = torch.cat(
        [trained[name].reshape(-1) for name, _ in made.task.model().named_parameters()]
    )
    assert torch.equal(found, whole.weights)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_kind
@pytest.mark.parametrize("defense", ["secure_afl", "trust_clipping"])
def test_recorded_round_on_a_gpu_is_the_one_on_a_cpu(kind, defense):
    made = [
        tiny(server_optimizer=kind, server_schedule=COSINE, defense=defense, device=device)
        for device in ("cpu", "cuda")
    ]
    runs = [Simulation(experiment) for experiment in made]
    for one in runs:
        run(one)
    torch.testing.assert_close(runs[0].weights, runs[1].weights.cpu(), rtol=1e-3, atol=1e-5)
    other = Simulation(made[1])
    run(other)
    assert torch.equal(other.weights, runs[1].weights)
