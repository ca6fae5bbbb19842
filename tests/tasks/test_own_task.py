"""Tasks of the user's own: the example, and other kinds of data."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import write_udacity
from simulation.small import run, tiny
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import ConfigError, DataError
from secureafl.core.events import EvaluationEvent
from secureafl.core.types import Data
from secureafl.simulation.simulator import Simulation
from secureafl.tasks.classification import Classification
from secureafl.tasks.in_memory import from_datasets, from_tensors

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_example_learns_under_attack_by_the_command_it_names(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    _, _, words = (EXAMPLES / "my_task.py").read_text().partition("secureafl run ")
    words = words.partition('"""')[0].replace("\\\n", " ").replace("--rounds 2000", "--rounds 500")
    words = ["run", *words.split(), "--quiet", "--device", "cpu", "--set", "threads=1"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["task"], result["rounds"]) == ("my_task:Spirals", 500)
    assert result["metrics"]["ter"]["late_mean"] < 0.25, "guessing is 0.667"
    held = json.loads((tmp_path / "out" / "holdings.json").read_text())["clients"]
    assert sum(map(sum, held)) == 3000


def test_example_is_as_short_as_promised():
    code = (EXAMPLES / "my_task.py").read_text()
    assert len(code[code.index("@dataclass") :].splitlines()) <= 40


@dataclass(frozen=True)
class Tokens(Classification):
    """`kind = "tasks.test_own_task:Tokens"`: whether a sequence begins as it ends."""

    def load(self):
        tokens = torch.randint(0, 5, (200, 4), generator=torch.Generator().manual_seed(0))
        samples = (tokens, (tokens[:, 0] == tokens[:, 3]).long())
        return from_datasets(TensorDataset(*samples), TensorDataset(*samples), "tokens")

    def model(self):
        return nn.Sequential(nn.Embedding(5, 8), nn.Flatten(), nn.Linear(32, 2))


def test_inputs_that_are_whole_numbers_reach_the_model_as_they_are():
    simulation = Simulation(tiny(task="test_own_task:Tokens"))
    run(simulation)
    assert torch.isfinite(simulation.weights).all()


class Views(nn.Module):
    """Flattens as most examples of PyTorch do, which needs the channels outermost."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 2)

    def forward(self, images):
        found = self.first(images)
        return self.last(found.view(found.size(0), -1))


@dataclass(frozen=True)
class Pictures(Classification):
    """`kind = "tasks.test_own_task:Pictures"`: dark or bright."""

    def load(self):
        images = torch.rand(200, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(200) % 2
        images -= labels.view(-1, 1, 1, 1)
        return from_tensors((images, labels), (images, labels), "pictures")

    def model(self):
        return Views()


def test_network_that_takes_the_usual_layout_of_images_learns():
    simulation = Simulation(tiny(task="test_own_task:Pictures", rounds=60))
    found = [event for event in run(simulation, 60) if isinstance(event, EvaluationEvent)]
    assert found[-1].metrics["ter"] < 0.2 < found[0].metrics["ter"]


def test_data_set_of_any_kind_is_read_once():
    class Squares(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return [float(i), 1.0], i % 2

    data = from_datasets(Squares(), Squares(), "squares")
    assert data.train_inputs[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert data.train_labels.tolist() == [0, 1] * 3
    assert data.pixel_mean.tolist() == [2.5, 1.0]
    assert data.pixel_std[1] == 1  # a column that never changes


@dataclass(frozen=True)
class Mistaken(Tokens):
    """`kind = "tasks.test_own_task:Mistaken"`: a model or a metric that cannot be used."""

    what: str = ""

    def model(self):
        return MODELS.get(self.what, super().model)()

    def metrics(self, outputs, labels):
        name = "accuracy" if self.what == "score" else "ter"
        found = super().metrics(outputs, labels)["ter"]
        return {name: 1 - found if self.what == "score" else found}


def embedding(rows=5, outputs=2, **changes):
    return nn.Sequential(nn.Embedding(rows, 8, **changes), nn.Flatten(), nn.Linear(32, outputs))


def half_frozen():
    model = embedding()
    model[0].requires_grad_(False)
    return model


class Pair(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs), None


MODELS = {
    "half": lambda: embedding().half(),
    "frozen": lambda: embedding().requires_grad_(False),
    "lazy": lambda: nn.Sequential(nn.Embedding(5, 8), nn.Flatten(), nn.LazyLinear(2)),
    "few rows": lambda: embedding(rows=4),
    "few outputs": lambda: embedding(outputs=1),
    "pair": lambda: Pair(*embedding()),
    "max_norm": lambda: embedding(max_norm=1.0),
    "half is frozen": half_frozen,
}
SAID = {
    "half": "'0.weight' is torch.float16; give model.float()",
    "frozen": "all its parameters are frozen; unfreeze those that are to train",
    "lazy": "it has lazy layers; call it on a batch",
    "few rows": "inputs reach from 0 to 4; number them from 0",
    "few outputs": "loss: IndexError: Target 1 is out of bounds",
    "pair": "its output is of type tuple",
    "max_norm": "changes the weights '0.weight'; leave out max_norm",
    "score": "'accuracy' is higher for better outputs",
}


@pytest.mark.parametrize("what", SAID)
def test_own_task_that_cannot_be_trained_is_refused_in_one_line(what):
    made = tiny(task={"kind": "tasks.test_own_task:Mistaken", "what": what})
    with pytest.raises(ConfigError) as caught:
        Simulation(made)
    assert SAID[what] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_frozen_layers_of_an_own_task_are_no_part_of_the_vector():
    made = tiny(task={"kind": "tasks.test_own_task:Mistaken", "what": "half is frozen"})
    simulation = Simulation(made)
    run(simulation)
    assert len(simulation.weights) == 32 * 2 + 2


GOOD = (torch.zeros(3, 2), torch.tensor([0, 1, 0]))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ((torch.zeros(0, 2), torch.zeros(0)), "at least 1"),
        ((torch.zeros(3, 2), torch.tensor([0, 1])), "a label for each"),
        ((torch.zeros(3, 2), torch.tensor([0, -1, 1])), "number classes from 0"),
        ((torch.zeros(3, 2), torch.tensor([0, 1, 2], dtype=torch.int32)), "give int64"),
        ((torch.full((3, 2), torch.nan), torch.tensor([0, 1, 2])), "not finite"),
        ((torch.zeros(3, 2), torch.tensor([0.0, torch.inf, 1])), "not finite"),
    ],
)
def test_tensors_that_are_no_data_set_are_refused_in_one_line(samples, said):
    for pair in ((samples, GOOD), (GOOD, samples)):
        with pytest.raises(DataError, match=said) as caught:
            from_tensors(*pair, "mine")
        assert "\n" not in str(caught.value)


ARRAYS = (np.zeros((3, 2), np.float32), np.array([0, 1, 0]))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (ARRAYS, "of type ndarray and ndarray; give two tensors; secureafl.from_datasets takes"),
        ((GOOD[0], [0, 1, 0]), "of type Tensor and list"),
        (GOOD[0], "of type Tensor; give two tensors"),
        ((*GOOD, GOOD[1]), "of type Tensor and Tensor and Tensor; give two"),
    ],
)
def test_what_is_no_pair_of_tensors_is_refused_with_what_takes_it(samples, said):
    for pair, part in (((samples, GOOD), "training"), ((GOOD, samples), "test")):
        with pytest.raises(DataError, match=rf"^mine, {part} samples: {said}"):
            from_tensors(*pair, "mine")
    read = from_datasets(ARRAYS, ARRAYS, "mine")
    assert torch.equal(read.train_labels, GOOD[1])


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (np.arange(3), "ndarray for 3 training samples; give a tensor"),
        (torch.arange(2), r"torch.int64 \(2,\) for 3"),
        (torch.rand(3), r"torch.float32 \(3,\) for 3"),
    ],
)
def test_origin_that_is_no_whole_number_for_each_sample_is_refused(origin, said):
    with pytest.raises(DataError, match=rf"^mine: train_origin is {said}"):
        from_tensors(GOOD, GOOD, "mine", origin)
    assert from_tensors(GOOD, GOOD, "mine", torch.arange(3)).train_origin is not None


@pytest.fixture
def steering(tmp_path, monkeypatch):
    """A regression on tiny recordings, with a model that is soon trained."""
    from secureafl.tasks import Udacity

    write_udacity(tmp_path, recordings=4)
    linear = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(48, 1), nn.Flatten(0))
    monkeypatch.setattr(Udacity, "model", lambda self: linear)
    task = {"kind": "udacity", "data_dir": str(tmp_path)}
    return lambda **changes: tiny(task=task, clients=4, malicious=1, **changes)


@pytest.mark.parametrize("attack", ["none", "label_flip", "sign_flip", "gaussian"])
@pytest.mark.parametrize("defense", ["async_sgd", "secure_afl", "kardam", "aflguard"])
def test_steering_is_learnt_by_recording_under_attack(steering, defense, attack):
    made = steering(partition="by_recording", defense=defense, attack=attack, rounds=30)
    simulation = Simulation(made)
    assert simulation.holdings is None
    events = run(simulation, 30)
    assert {*events[0].metrics} == {"rmse"}
    assert torch.isfinite(simulation.weights).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attack": "scaling", "partition": "by_recording"}, "needs images and classes"),
        ({"partition": "label_groups"}, "by_recording"),
    ],
)
def test_what_needs_classes_refuses_a_regression_in_one_line(steering, changes, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Simulation(steering(**changes))
    assert "\n" not in str(caught.value)


def test_data_knows_of_no_recordings_unless_told():
    assert isinstance(from_tensors(GOOD, GOOD, "mine"), Data)
    assert from_tensors(GOOD, GOOD, "mine").train_origin is None
