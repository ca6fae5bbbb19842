"""Fit a module to samples of one's own, whatever form they come in."""

import ast
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from library.fitted import FRAME, RNG, TOKENS, Pairs, X, Y, linear
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import secureafl
from secureafl import Training
from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent
from secureafl.tasks.samples import read_samples

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_arrays.py"


def test_strangers_script_of_ten_lines_learns_under_attack(tmp_path, monkeypatch, capsys):
    lines = [node for node in ast.parse(EXAMPLE.read_text()).body if not isinstance(node, ast.Expr)]
    assert len(lines) < 10  # and a last one that prints
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    found = runpy.run_path(str(EXAMPLE))
    assert found["right"].mean() == pytest.approx(1 - found["result"].metrics["ter"])
    assert found["right"].mean() > 0.8
    assert "of 397 test images" in capsys.readouterr().out


def test_it_is_the_simulation_that_runs_everything_else(short):
    result = short(linear(), (X, Y), rounds=30, attack="sign_flip", defense="kardam", malicious=1)
    events = [event for event in result.events() if isinstance(event, ArrivalEvent)]
    assert len(events) == 30
    assert len(result.summary["malicious_clients"]) == 1
    assert result.settings["defense"]["kind"] == "kardam"
    assert result.settings["task"]["kind"] == "arrays"
    assert secureafl.results_table([result.path]).query("select task from runs").rows == [
        ("arrays",)
    ]


def test_module_given_stays_as_it_was_and_the_result_holds_a_trained_copy(short):
    model = nn.Sequential(linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), linear(6, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = short(model, (X, Y), (X, Y), rounds=20)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    wrong = (result.model(X).argmax(dim=1).numpy() != Y).mean()
    assert wrong == pytest.approx(result.metrics["ter"])
    assert not torch.equal(result.model.module[1].running_mean, before["1.running_mean"])


def test_same_call_goes_on_and_another_is_refused(short, tmp_path):
    first = short(linear(), (X, Y), rounds=3)
    again = short(linear(), (X, Y), rounds=3)
    assert again.summary == first.summary
    for model, data in ((linear(), (X + 1, Y)), (nn.Linear(4, 2), (X, Y))):
        with pytest.raises(RunError, match="other settings"):
            short(model, data, rounds=3)
    with pytest.raises(RunError, match=r"a run of secureafl.fit, whose module is not in it"):
        secureafl.load_model(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match=r"call secureafl.fit again"):
        secureafl.simulation.run.resume_run(tmp_path / "run", 60)
    assert short(linear(), (X, Y), rounds=3).metrics == first.metrics


class Wide(nn.Module):
    """The same weights, and another forward for each power."""

    def __init__(self, power=1):
        super().__init__()
        self.layer, self.power = linear(), power

    def forward(self, inputs):
        return self.layer(inputs) ** self.power


class Negative(Wide):
    def forward(self, inputs):
        return -self.layer(inputs)


Negative.__name__ = Negative.__qualname__ = "Wide"  # as if the script had changed


def smoothed(by):
    return lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, label_smoothing=by)


def wrong(outputs, labels):
    return {"wrong": (outputs.argmax(dim=1) != labels).float().mean()}


def slightly_wrong(outputs, labels):
    return {"wrong": (outputs.argmax(dim=1) != labels).float().mean() / 2}


FIRST = {"model": Wide(), "loss": smoothed(0.1), "metrics": wrong}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": smoothed(0.2)}, "loss_checksum"),
        ({"loss": nn.CrossEntropyLoss()}, "loss_checksum"),
        ({"metrics": slightly_wrong}, "metrics_checksum"),
        ({"model": Wide(power=3)}, "module_checksum"),
        ({"model": Negative()}, "module_checksum"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_run_of_another_loss_metric_or_architecture_is_not_gone_on_with(
    short, tmp_path, changes, said, finished
):
    short(data=(X, Y), **FIRST)
    if not finished:
        (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match=said) as caught:
        short(data=(X, Y), **FIRST | changes)
    assert "other settings" in str(caught.value)
    assert short(data=(X, Y), **FIRST | {"loss": smoothed(0.1)}).metrics


class Column:
    """As a column of a Hugging Face data set: a sequence that is no list."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, number):
        return self.values[number]


class Table:
    """As a Hugging Face data set: columns by name, rows by number."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, which):
        if isinstance(which, str):
            return Column(self.columns[which])
        return {name: values[which] for name, values in self.columns.items()}


FORMS = {
    "arrays": (X, Y),
    "a list of two": [X, Y],
    "lists": (X.tolist(), Y.tolist()),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "half precision": (torch.tensor(X).bfloat16(), torch.tensor(Y)),
    "another byte order": (X.astype(">f8"), Y.astype(">i2")),
    "labels in a column": (X, Y[:, None]),
    "labels that are true or false": (X, Y > 0),
    "TensorDataset": TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "items": Pairs(),
    "pairs": list(zip(X, Y, strict=True)),
    "columns": {"values": X, "label": Y},
    "columns side by side": {**{name: FRAME[name] for name in "abcd"}, "y": Y},
    "data frame": FRAME,
    "frame and series": (FRAME[list("abcd")], FRAME["label"]),
    "table": Table(values=X.tolist(), label=Y.tolist()),
}


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_the_same_in_every_form(form):
    inputs, labels = read_samples(FORMS[form], "data")
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    rounded = 0.02 if form == "half precision" else 1e-6
    torch.testing.assert_close(inputs, torch.tensor(X).float(), rtol=rounded, atol=rounded)
    assert labels.tolist() == Y.tolist()


@pytest.mark.parametrize("bands", [1, 3])
def test_pictures_get_their_channels_outermost(bands):
    shape = (8, 6) if bands == 1 else (8, 6, 3)
    pictures = [Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)) for _ in range(4)]
    labels = [0, 1, 0, 1]
    for form in (list(zip(pictures, labels, strict=True)), Table(image=pictures, label=labels)):
        inputs, _ = read_samples(form, "data")
        assert (inputs.dtype, inputs.shape) == (torch.uint8, (4, bands, 8, 6))
        raw = np.asarray(pictures[1])
        assert np.array_equal(inputs[1, 0].numpy(), raw if bands == 1 else raw[..., 0])


@pytest.mark.parametrize(
    ("dtype", "model", "kept"),
    [
        ("float16", linear(), "float32"),
        ("int16", linear(), "float32"),
        ("uint32", linear(), "float32"),
        ("bool", linear(), "float32"),
        ("uint8", linear(), "uint8"),
        ("int32", nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), linear(8)), "int64"),
        ("uint8", nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), linear(8)), "int64"),
    ],
)
def test_whole_numbers_are_tokens_or_figures_as_the_module_takes_them(short, dtype, model, kept):
    result = short(model, (TOKENS.astype(dtype), Y))
    assert result.model.dtype == getattr(torch, kept)
    assert result.model(TOKENS.astype(dtype)).shape == (60, 2)


def test_real_labels_make_a_regression(short):
    result = short(linear(4, 1), (X, X.sum(axis=1)), (X, X.sum(axis=1)), rounds=150)
    assert result.metrics["rmse"] < 0.3
    with pytest.raises(RunError, match="other settings"):
        short(linear(4, 1), (X, X.sum(axis=1)), partition="dirichlet")


def test_loss_and_metrics_can_be_ones_own(short):
    def both(outputs, labels):
        right = (outputs.argmax(dim=1) == labels).float().mean()
        return {"error": 1 - right, "accuracy": right}

    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    result = short(linear(), (X, Y), loss=loss, metrics=both)
    assert [*result.metrics] == ["error", "accuracy"]
    assert result.settings["task"]["loss_name"] == "CrossEntropyLoss"


def test_runs_of_several_modules_are_told_apart_by_their_settings_alone(short, tmp_path):
    for name, model in (("async_sgd", linear()), ("kardam", nn.Linear(4, 2))):
        short(model, (X, Y), defense=name).path.rename(tmp_path / name)
    found = secureafl.RunResults([tmp_path / "async_sgd", tmp_path / "kardam"])
    assert found.table["defence"].tolist() == ["async_sgd", "kardam"]


def test_inputs_stay_as_they_are_if_told(short):
    result = short(linear(), (X, Y), standardise=False)
    torch.testing.assert_close(result.model(X), result.model.module(torch.tensor(X).float()))


def test_clients_hold_whole_recordings_by_name(short):
    origin = np.array(["anna", "ben", "carl"])[np.arange(60) % 3]
    result = short(linear(), (X, Y), (X, Y), origin=origin, partition="by_recording")
    held = secureafl.runs.layout.read_json(result.path / "holdings.json")["clients"]
    assert [sum(counts) for counts in held] == [20, 20, 20]


def test_parts_of_a_data_set_are_training_and_test(short):
    result = short(linear(), {"train": FRAME, "test": FRAME[:10]})
    assert "60 training, 10 test" in result.summary["data"]
    result.path.rename(result.path.with_name("first"))
    assert "48 training, 12 test" in short(linear(), FRAME).summary["data"]


def test_settings_are_given_as_names_tables_or_objects(short):
    result = short(
        linear(),
        (X, Y),
        attack=secureafl.attacks.SignFlip(factor=3.0),
        defense={"kind": "fed_buff", "buffer_size": 2},
        training={"local_steps": 2},
        learning_rate=0.2,
    )
    assert result.settings["attack"] == {"kind": "sign_flip", "factor": 3.0}
    assert result.settings["defense"]["buffer_size"] == 2
    training = result.settings["training"]
    assert (training["local_steps"], training["learning_rate"]) == (2, 0.2)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, (0.05, 32, 1)),
        ({"defense": None, "learning_rate": 0.2}, (0.2, 32, 1)),
        ({"training": {"batch_size": 4}, "learning_rate": 0.2}, (0.2, 4, 1)),
        ({"training": Training(local_steps=2)}, (0.01, 32, 2)),
        ({"learning_rate": np.float64(0.25), "batch_size": np.int64(8)}, (0.25, 8, 1)),
    ],
)
def test_training_is_what_was_told_wherever_it_was_told(short, changes, found):
    training = short(linear(), (X, Y), **changes).settings["training"]
    assert (training["learning_rate"], training["batch_size"], training["local_steps"]) == found


def test_numbers_of_numpy_are_taken(short):
    given = {"clients": np.int32(3), "rounds": np.int64(4), "seed": np.uint8(5)}
    assert short(linear(), (X, Y), **given).summary["seed"] == 5


@dataclass(frozen=True)
class Mine(secureafl.partitions.ByRecording):
    """A partition of one's own."""


def test_own_partition_may_look_at_the_origin(short):
    result = short(linear(), (X, Y), (X, Y), origin=np.arange(60) % 3, partition=Mine())
    held = secureafl.runs.layout.read_json(result.path / "holdings.json")["clients"]
    assert [sum(counts) for counts in held] == [20, 20, 20]
