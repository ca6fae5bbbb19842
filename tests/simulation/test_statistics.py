"""Running statistics of batch normalisation are no way around a defence."""

from dataclasses import dataclass

import pytest
import torch
from reference.tiny_task import TinyNormed
from simulation.small import run, tiny
from torch import nn

from secureafl.core.errors import ConfigError
from secureafl.core.flat_model import FlatModel, call_flat, flatten, layout
from secureafl.experiment import Training
from secureafl.runtime.clients import Clients
from secureafl.runtime.devices import on_device
from secureafl.simulation.simulator import Simulation

TASK, STATISTICS = TinyNormed(), 8
DATA = TASK.load()
NORMED = "reference.tiny_task:TinyNormed"


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TASK.model()


@dataclass(frozen=True)
class Skewed:
    """`kind = "simulation.test_statistics:Skewed"`: honest weights, statistics far off."""

    knows = "own"

    size: float = 1e4

    def init(self, context):
        assert list(context.layout)[-2:] == ["1.running_mean", "1.running_var"]
        return ()

    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels

    def poison_update(self, state, arrival, view):
        update = arrival.gradient.clone()
        update[-STATISTICS:] = self.size
        return update, state


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("steps", [1, 3])
def test_honest_uploads_move_the_statistics_as_the_layer_itself_would(model, reduction, steps):
    training = Training(8, 0.1, reduction, steps)
    clients, weights = Clients(TASK, DATA, model, training), flatten(model)
    plain = TASK.model()
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    for rows in torch.arange(72).view(-1, 8 * steps):
        weights = weights - training.server_rate * clients.update(weights, rows)
        for batch in rows.view(steps, 8):
            images = (DATA.train_inputs[batch].float() / 255 - 0.3) / 0.2
            optimizer.zero_grad()
            TASK.loss(plain(images), DATA.train_labels[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(weights, flatten(plain), rtol=1e-3, atol=1e-4)
    test_images = (DATA.test_inputs.float() / 255 - 0.3) / 0.2
    torch.testing.assert_close(
        clients.test_outputs(weights), plain.eval()(test_images).detach(), rtol=1e-3, atol=1e-3
    )


def test_training_leaves_the_model_itself_alone(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    clients = Clients(TASK, DATA, model, Training())
    clients.update(flatten(model) + 1, torch.arange(20))
    clients.test_outputs(flatten(model) + 1)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_outputs_after_training_do_not_depend_on_the_batch(model):
    weights, images = flatten(model), torch.randn(10, 1, 6, 6)
    alone = torch.cat([call_flat(model, weights, image[None]) for image in images])
    torch.testing.assert_close(call_flat(model, weights, images), alone)
    training, _ = FlatModel(model).train(weights, images)
    assert not torch.allclose(training, alone, atol=1e-2)


def statistics_after(defense, attack, rounds=120):
    made = tiny(task=NORMED, defense=defense, attack=attack, rounds=rounds, clients=10, malicious=2)
    simulation = Simulation(made)
    events = run(simulation, rounds)
    return simulation.weights[-STATISTICS:], events


SKEWED = {"kind": "simulation.test_statistics:Skewed"}
MEDIAN = {"kind": "secure_afl", "alpha": 1.0, "clip_norm": 1e9}  # the median alone protects


def test_median_keeps_poisoned_statistics_out_and_a_mean_does_not():
    honest, _ = statistics_after(MEDIAN, "none")
    defended, _ = statistics_after(MEDIAN, SKEWED)
    undefended, _ = statistics_after("async_sgd", SKEWED)
    assert (undefended - honest).abs().min() > 1000
    assert (defended - honest).abs().max() < 1


def distance(found, honest):
    """Relative where statistics are large: variances grow with the model."""
    return ((found - honest).abs() / (1 + honest.abs())).max()


@pytest.fixture(scope="module")
def honestly_learnt():
    return statistics_after("trust_clipping", "none", rounds=300)[0]


@pytest.mark.parametrize("size", [1e4, 10.0, -10.0])
def test_who_lies_about_statistics_alone_has_no_weight_under_the_default_rule(
    size, honestly_learnt
):
    defended, events = statistics_after("trust_clipping", {**SKEWED, "size": size}, rounds=300)
    lies = [e.accepted for e in events[50:] if getattr(e, "malicious", False)]
    assert len(lies) > 30
    assert not any(lies)
    undefended, _ = statistics_after("async_sgd", {**SKEWED, "size": size}, rounds=300)
    assert distance(defended, honestly_learnt) < 1 < distance(undefended, honestly_learnt)


def test_filter_sees_statistics_that_jump():
    _, events = statistics_after("kardam", {**SKEWED, "size": 1e6})
    poisoned = [e.accepted for e in events[20:] if getattr(e, "malicious", False)]
    assert len(poisoned) > 10
    assert sum(poisoned) < len(poisoned) / 2


@pytest.mark.parametrize("variance", [-1e10, -1.0, 0.0, 1e18])
def test_variance_a_poisoned_step_left_behind_gives_finite_outputs(model, variance):
    weights = flatten(model)
    weights[-4:] = variance
    images = torch.randn(3, 1, 6, 6)
    assert torch.isfinite(call_flat(model, weights, images)).all()
    outputs, moved = FlatModel(model).train(weights, images)
    assert torch.isfinite(outputs).all()
    assert torch.isfinite(moved).all()


@pytest.mark.parametrize("norm", ["counting", "instance"])
def test_state_that_is_not_in_the_vector_is_refused(norm):
    with pytest.raises(ConfigError, match=r"training changes its buffer '1\."):
        Simulation(tiny(task={"kind": NORMED, "norm": norm}))


@pytest.mark.parametrize("norm", ["without statistics", "dropout"])
def test_layers_without_state_are_used_as_they_are(norm):
    simulation = Simulation(tiny(task={"kind": NORMED, "norm": norm}))
    assert len(simulation.weights) == sum(
        p.numel() for p in TinyNormed(norm=norm).model().parameters()
    )
    run(simulation, 3)
    assert torch.isfinite(simulation.weights).all()


def test_training_reads_no_number_back_to_the_host():
    # On "meta" tensors have no values, so reading one raises.
    meta = torch.device("meta")
    clients = Clients(TASK, on_device(DATA, meta), TASK.model().to(meta), Training(local_steps=2))
    weights = torch.zeros(sum(p.numel() for p in TASK.model().parameters()) + 8, device=meta)
    rows = torch.zeros(8, dtype=torch.int64, device=meta)
    assert clients.update(weights, rows).shape == weights.shape


def test_statistics_of_a_lone_layer_have_names_too():
    assert list(layout(nn.BatchNorm1d(3))) == ["weight", "bias", "running_mean", "running_var"]


def test_local_steps_upload_the_whole_way(model):
    one, three = (Training(4, 0.1, local_steps=k) for k in (1, 3))
    rows, start = torch.arange(12), flatten(model)
    now = start
    for batch in rows.view(3, 4):
        now = now - 0.1 * Clients(TASK, DATA, model, one).update(now, batch)
    upload = Clients(TASK, DATA, model, three).update(start, rows)
    torch.testing.assert_close(start - 0.1 * upload, now, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attack", ["label_flip", "pgd"])
@pytest.mark.parametrize("defense", ["secure_afl", "zeno_pp"])
def test_runs_with_local_steps_learn(defense, attack):
    training = {"batch_size": 4, "learning_rate": 0.05, "local_steps": 3}
    made = tiny(task=NORMED, training=training, defense=defense, attack=attack, rounds=60)
    simulation = Simulation(made)
    assert simulation._jobs.shape[1] == 4 + 12
    events = run(simulation, 60)
    errors = [e.metrics["ter"] for e in events if hasattr(e, "metrics")]
    assert errors[-1] < errors[0]


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_number_of_local_steps_out_of_range_is_refused(steps):
    with pytest.raises(ConfigError, match=f"local_steps = {steps}"):
        Training(local_steps=steps)
