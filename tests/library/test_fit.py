"""Fit a module to samples of one's own, whatever form they come in."""

import ast
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import secureafl
from secureafl import Training
from secureafl.core.errors import ConfigError, DataError, RunError, SecureAflError
from secureafl.core.events import ArrivalEvent
from secureafl.library.fitting import fit
from secureafl.tasks.samples import read_samples

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_arrays.py"
RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4))
Y = (X.sum(axis=1) > 0).astype(int)
TOKENS = RNG.integers(0, 9, (60, 4))


def linear(inputs=4, outputs=2):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


@pytest.fixture
def short(tmp_path):
    def run(model, data, *more, **changes):
        few = {"rounds": 2, "clients": 3, "evaluation": {"late": 1}, "threads": 1, "device": "cpu"}
        return fit(model, data, *more, out=tmp_path / "run", **few | changes)

    return run


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


class Pairs(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, number):
        return X[number].astype(np.float32), Y[number]


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


FRAME = pd.DataFrame(X, columns=list("abcd")).assign(label=Y)
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


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


class Huge(Pairs):
    def __len__(self):
        return 10**13


class Couple(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, inputs):
        return self.layer(inputs), None


def frozen():
    return linear().requires_grad_(False)


def embedding(rows=9, **changes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(rows, 2, **changes), nn.Flatten(), linear(8))


class Learning(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, outputs, labels):
        return nn.functional.cross_entropy(self.scale * outputs, labels)


class Counting(nn.Module):
    """Counts its calls, in a number or in a list."""

    def __init__(self, notes):
        super().__init__()
        self.layer, self.notes = linear(), notes

    def forward(self, inputs):
        if isinstance(self.notes, int):
            self.notes += 1
        else:
            self.notes.append(len(self.notes))
        return self.layer(inputs)


class Listed(nn.Module):
    """Its forward takes the weights from a list."""

    def __init__(self):
        super().__init__()
        self.layer = linear()
        self.all = [*self.layer.parameters()]

    def forward(self, inputs):
        return nn.functional.linear(inputs, self.all[0], self.layer.bias)


def small_images():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 2))


MISTAKES = {  # what is given, and what the one line says of it
    "class for a model": (nn.Linear, (X, Y), "that is the class; give Linear"),
    "function for a model": (len, (X, Y), "give a torch.nn.Module"),
    "nothing to train": (nn.Flatten(), (X, Y), "no parameters to train"),
    "double precision": (linear().double(), (X, Y), "give model.float()"),
    "half precision": (linear().half(), (X, Y), "'weight' is torch.float16; give model.float()"),
    "all frozen": (frozen(), (X, Y), "all its parameters are frozen; unfreeze those"),
    "counter": (Counting(0), (X, Y), "its forward changes the attribute 'notes'"),
    "list": (Counting([]), (X, Y), "its forward changes the attribute 'notes'"),
    "weights cut short": (embedding(max_norm=9.0), (TOKENS, Y), "'0.weight'; leave out max_norm"),
    "weights in a list": (Listed(), (X, Y), "parameter 'layer.weight' would not be trained"),
    "sparse gradient": (embedding(sparse=True), (TOKENS, Y), "leave out sparse=True"),
    "token below 0": (embedding(), (np.where(TOKENS[50] == TOKENS, -1, TOKENS), Y), "from -1 to 8"),
    "two outputs at once": (Couple(), (X, Y), "give a module that gives a tensor"),
    "lazy statistics": (nn.LazyBatchNorm1d(), (X, Y), "call a lazy module once"),
    "wrong size": (linear(5), (X, Y), "refuses inputs of shape (4,)"),
    "no channel": (small_images(), (np.ones((60, 8, 8)), Y), "inputs[:, None]"),
    "channels last": (small_images(), (np.ones((60, 8, 8, 3)), Y), "transpose(0, 3, 1, 2)"),
    "no flatten": (linear(64), (np.ones((60, 8, 8)), Y), "nn.Flatten()"),
    "token too large": (
        nn.Sequential(nn.Embedding(8, 2), nn.Flatten(), linear(8)),
        (TOKENS, Y),
        "inputs reach from 0 to 8",
    ),
    "labels from 1": (linear(), (X, Y + 1), "labels reach 2, which needs 3 outputs"),
    "negative label": (linear(), (X, Y - 1), "number classes from 0"),
    "one-hot": (linear(), (X, np.eye(2)[Y]), "labels.argmax(1)"),
    "texts for labels": (linear(), (X, np.array(["a", "b"])[Y]), "numpy.unique"),
    "real labels, two outputs": (linear(), (X, X[:, 0]), "end it with one output"),
    "classes as floats": (linear(), (X, Y.astype(float)), "labels.astype(int)"),
    "classes, no column": (
        nn.Sequential(linear(4, 1), nn.Flatten(0)),
        (X, Y),
        "2 classes; for a regression give labels.astype(float)",
    ),
    "whole numbers for a regression": (linear(4, 1), (X, Y), "give labels.astype(float)"),
    "not a number": (linear(), (np.where(X[7, 1] == X, np.nan, X), Y), "the first is number 7"),
    "infinite label": (linear(4, 1), (X, np.where(Y, np.inf, 1.0)), "not finite"),
    "nothing": (linear(), (X[:0], Y[:0]), "there are no samples"),
    "too few": (linear(), (X[:1], Y[:1]), "give test=(inputs, labels)"),
    "other lengths": (linear(), (X, Y[:5]), "60 inputs and 5 labels"),
    "no labels": (linear(), X, "inputs without labels"),
    "a path": (linear(), "data.csv", "of type str"),
    "a loader": (linear(), DataLoader(Pairs()), "loader.dataset"),
    "no length": (linear(), Endless(), "has no length"),
    "no pairs": (linear(), [(x, y, y) for x, y in zip(X, Y, strict=True)], "no pair"),
    "ragged": (linear(), ([[1.0, 2.0], [1.0]], [0, 1]), "crop or pad"),
    "complex": (linear(), (X + 1j, Y), "complex numbers"),
    "objects": (linear(), (np.array([object()] * 60), Y), "Python objects"),
    "sparse": (linear(), (torch.tensor(X).to_sparse(), Y), "to_dense()"),
    "which column": (linear(), {"values": X, "group": Y}, "columns=(inputs, labels)"),
    "columns not alike": (linear(), {"a": X, "b": X[:, 0], "label": Y}, "side by side"),
    "too many": (linear(), Huge(), "GB are free"),
    "few samples for clients": (linear(), (X[:3], Y[:3]), "only 2 training samples"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_in_one_line_with_its_remedy(short, tmp_path, mistake):
    model, data, said = MISTAKES[mistake]
    with pytest.raises(SecureAflError) as caught:
        short(model, data)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("default")  # torch only warns of it
def test_loss_that_would_compare_each_output_with_each_label_is_refused(short):
    labels = X.sum(axis=1)
    with pytest.raises(ConfigError, match=r"loss: .*Using a target size .*outputs \(2, 1\) and"):
        short(linear(4, 1), (X, labels), loss=nn.MSELoss())
    flat = nn.Sequential(linear(4, 1), nn.Flatten(0))
    assert short(flat, (X, labels), loss=nn.MSELoss()).metrics


def test_metrics_are_tried_on_all_labels_of_the_test(short):
    def by_class(outputs, labels):
        assert len(labels.unique()) == 2, "undefined for one class"
        return {"error": (outputs.argmax(dim=1) != labels).double().mean()}

    order = np.argsort(Y, kind="stable")
    assert short(linear(), (X[order], Y[order]), (X[order], Y[order]), metrics=by_class).metrics


def test_frozen_layers_stay_as_they_are_and_are_no_part_of_an_upload(short):
    model = nn.Sequential(linear(4, 6), nn.ReLU(), linear(6, 2))
    model[0].requires_grad_(False)
    result = short(model, (X, Y), rounds=20)
    before, after = model.state_dict(), result.model.module.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved == ["2.weight", "2.bias"]
    assert secureafl.flatten(model).numel() == 14


def test_table_made_at_the_first_call_and_kept_is_no_hidden_state(short):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.table = linear(), None

        def forward(self, inputs):
            if self.table is None:
                self.table = torch.arange(4.0)
            return self.layer(inputs + self.table)

    assert short(Shifted(), (X, Y)).metrics


def test_buffer_of_undefined_numbers_that_stays_is_no_hidden_state(short):
    model = linear()
    model.register_buffer("undefined", torch.tensor([torch.nan]))
    assert short(model, (X, Y)).metrics


@pytest.mark.parametrize("where", ["data", "test"])
@pytest.mark.parametrize("token", [-1, 9])
def test_token_that_an_embedding_lacks_is_found_wherever_it_is(short, where, token):
    samples = {"data": (TOKENS, Y), "test": (TOKENS.copy(), Y)}
    changed = samples[where][0].copy()
    changed[40, 2] = token
    samples[where] = changed, Y
    with pytest.raises(ConfigError, match=f"inputs reach from .*{token}.*number them from 0"):
        short(embedding(), **samples)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, inputs):
        return self.layer(inputs) if inputs.sum().item() > 0 else -self.layer(inputs)


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        (
            nn.Sequential(linear(4, 3), nn.BatchNorm1d(3), linear(3)),
            {"batch_size": 1},
            "= 2 or more",
        ),
        (
            Branching(),
            {"training": {"privacy": {"clip": 1.0, "noise": 1.0}}},
            'do without .item() and branches on tensors, or use unit = "upload"',
        ),
    ],
)
def test_model_that_a_setting_does_not_suit_is_told_in_one_line(short, model, changes, said):
    with pytest.raises(ConfigError) as caught:
        short(model, (X, Y), **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert short(model, (X, Y)).metrics


RECORDED = {"partition": "by_recording"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rat": 0.1}, "did you mean 'learning_rate'?"),
        ({"task": "cifar10"}, "leave it out"),
        ({"seed": -1}, "seed = -1"),
        ({"clients": "ten"}, "clients = 'ten': give a whole number"),
        ({"rounds": 0}, "rounds = 0"),
        ({"malicious": 2.0, "attack": "sign_flip"}, "give a share from 0 to 1"),
        ({"attack": secureafl.attacks.SignFlip}, "that is the class; give SignFlip()"),
        ({"training": 3}, "give a table of settings"),
        ({"partition": "by_recording"}, "has no recordings"),
        ({"attack": "sign_flp"}, "did you mean 'sign_flip'?"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "give the mean over a batch"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "has twice the loss; give the mean"),
        ({"loss": lambda outputs: outputs}, "it gets outputs (2, 2) and labels (2,)"),
        ({"loss": lambda outputs, labels: outputs.sum() / 0}, "before the first round; look at"),
        ({"loss": lambda outputs, labels: outputs.detach().mean()}, "do without .item(), .numpy()"),
        ({"loss": Learning()}, "its parameter 'scale' would not be trained; put it into the model"),
        ({"metrics": lambda outputs, labels: 1.0}, "gives a dict of numbers"),
        ({"metrics": lambda outputs, labels: {}}, "it gives an empty dict"),
        (
            {
                "metrics": lambda outputs, labels: {
                    "right": (outputs.argmax(1) == labels).double().mean()
                }
            },
            "'right' is higher for better outputs; give an error first",
        ),
        ({"test": (X[:, :3], Y)}, "inputs are (3,), those of data (4,)"),
        ({"test": (X, X[:, 0])}, "labels are torch.float32"),
        ({"test": (TOKENS.astype("uint8"), Y)}, "give both alike"),
        ({"origin": np.arange(60), **RECORDED}, "cannot be held out of recordings"),
        ({"origin": np.arange(6), "test": (X, Y), **RECORDED}, "(6,) for 60 training samples"),
        ({"origin": np.arange(60), "test": (X, Y)}, "the partition 'iid' does not look at it"),
        ({"learning_rate": 0.3, "training": Training()}, "learning_rate = 0.3: training says it"),
        ({"batch_size": 8, "training": {"batch_size": 4}}, "batch_size = 8: training says it too"),
        ({"learning_rate": 0.3, "training": 3}, "give a table of settings"),
        ({"training": Training}, "give Training(…)"),
        ({"training": None}, "training = None: give a table of settings"),
        ({"rounds": None}, "rounds = None: give a whole number"),
        ({"seed": None}, "seed = None: give a whole number"),
        ({"attack": None}, "attack = None: give a name, or a table"),
        ({"origin": [None, "a", 1] * 20, "test": (X, Y), **RECORDED}, "origin: '<' not supported"),
        ({"columns": ("a", "z")}, "which columns"),
    ],
)
def test_wrong_setting_is_told_in_one_line(short, changes, said):
    data = FRAME if "columns" in changes else (X, Y)
    with pytest.raises((ConfigError, DataError)) as caught:
        short(linear(), data, **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
