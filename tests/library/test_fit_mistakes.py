"""What `fit` refuses, in one line with the remedy, and what only looks as if it should."""

import numpy as np
import pytest
import torch
from library.fitted import FRAME, TOKENS, Pairs, X, Y, linear
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import secureafl
from secureafl import Training
from secureafl.core.errors import ConfigError, DataError, SecureAflError


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
