"""A tape gives the bits of the function it was made of, or is given up."""

import copy

import pytest
import torch
from simulation.small import run, tiny
from torch import nn
from torch.nn.functional import cross_entropy

from secureafl.core.flat_model import FlatModel, flatten
from secureafl.runtime import tape
from secureafl.runtime.tape import Taped
from secureafl.simulation.simulator import Simulation

CALLS = 45


class Residual(nn.Module):
    """A block that adds, writes in place and shares a layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, inputs):
        between = inputs + self.layer(inputs).relu_()
        between += 1
        return self.norm(self.layer(between)).transpose(0, 1).contiguous().t()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells, self.out = nn.Embedding(9, 4), nn.GRU(4, 5), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.out(self.cells(self.words(inputs.abs().long() % 9).transpose(0, 1))[0][-1])


class Filling(nn.Module):
    """Makes tensors of one number, and changes one of them."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        between = torch.ones_like(inputs)
        between += self.layer(inputs) * torch.zeros_like(inputs).add_(inputs)
        return self.out(between)


class Choosy(nn.Module):
    """Looks at a number to choose its way."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.one(inputs) if inputs.sum() > 0 else self.other(inputs)


class Counting(nn.Module):
    """Takes another way at every second call."""

    def __init__(self):
        super().__init__()
        self.out, self.calls = nn.Linear(6, 3), 0

    def forward(self, inputs):
        self.calls += 1
        return self.out(inputs * (1 + self.calls % 2))


class Unwatched(nn.Module):
    """Fails where operations are watched."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, inputs):
        dropped = torch.dropout(inputs, 0.5, train=True)
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not while somebody looks")
        return self.out(dropped)


class ByNumpy(nn.Module):
    """Computes where nobody sees it."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.out(inputs * torch.from_numpy(inputs.numpy().clip(0)))


def normed():
    return (
        nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
        )
        .append(nn.MaxPool1d(2))
        .append(nn.Flatten())
        .append(nn.Linear(8, 3))
    )


def dropping():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 3))


PLAIN = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "residual": lambda: nn.Sequential(Residual(), nn.Linear(6, 3)),
    "filling": Filling,
    "batch norm": normed,
    "dropout": dropping,
    "recurrent": Recurrent,
}
NOT_PLAIN = {
    "choosy": Choosy,
    "counting": Counting,
    "by numpy": ByNumpy,
    "unwatched": Unwatched,
}


def gradient_of(model):
    flat = FlatModel(model)
    return lambda w, x, y: flat.gradient(w, x, lambda out: cross_entropy(out, y))


def play(model):
    """The function and its tape on the same weights and batches; the tape, None if given up."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        function, taped = gradient_of(copy.deepcopy(model)), Taped(gradient_of(model))
        start = flatten(model)
        for _ in range(CALLS):
            given = start + 0.1 * torch.randn_like(start), torch.randn(5, 6)
            labels = torch.randint(3, (5,))
            with torch.random.fork_rng():
                wanted = function(*given, labels)
            found = taped(*given, labels)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
            assert found[0].data_ptr() != given[0].data_ptr()
    (once,) = taped._runs.values()
    return once._replay


@pytest.mark.parametrize("name", PLAIN)
def test_tape_gives_the_bits_of_autograd(name):
    assert play(PLAIN[name]()) is not None


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_model_that_is_no_function_of_tensors_stays_as_it_is(name):
    assert play(NOT_PLAIN[name]()) is None


def test_what_a_tape_returned_stays_as_it_was():
    model = PLAIN["mlp"]()
    taped, batch = Taped(gradient_of(model)), (torch.randn(5, 6), torch.randint(3, (5,)))
    for _ in range(CALLS):
        found = taped(flatten(model), *batch)[0]
    before = found.clone()
    taped(flatten(model) + 1, *batch)
    assert torch.equal(found, before)


def test_part_of_a_product_that_a_tape_returned_stays_as_it_was():
    taped = Taped(lambda weights, inputs, _: ((inputs @ weights[:, None])[:, 0],))
    weights, batch = torch.randn(6), (torch.randn(5, 6), torch.zeros(5))
    for _ in range(CALLS):
        (found,) = taped(weights, *batch)
    before = found.clone()
    assert not torch.equal(taped(weights + 1, *batch)[0], before)
    assert torch.equal(found, before)


def test_tape_of_layers_that_onednn_would_take_gives_the_bits_of_autograd():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    function, taped, weights = gradient_of(model), Taped(gradient_of(model)), flatten(model)
    for number in range(CALLS):
        batch = torch.randn(32, 64), torch.randint(10, (32,))
        here = weights * (0 if number < CALLS - 10 else 1)  # tried with other numbers than its own
        assert torch.equal(taped(here, *batch)[0], function(here, *batch)[0])


def test_each_shape_of_batches_has_its_tape():
    model = PLAIN["mlp"]()
    function, taped, weights = gradient_of(model), Taped(gradient_of(model)), flatten(model)
    for number in range(3 * CALLS):
        size = 3 + number % 2
        batch = torch.randn(size, 6), torch.randint(3, (size,))
        assert torch.equal(taped(weights, *batch)[0], function(weights, *batch)[0])
    assert len(taped._runs) == 2


@pytest.mark.parametrize("attack", ["none", "pgd"])
def test_run_with_tapes_is_the_run_without(attack, monkeypatch):
    made = tiny(attack=attack, defense="aflguard", rounds=60)
    with_tapes, without = Simulation(made), Simulation(made)
    events = run(with_tapes, 60)
    monkeypatch.setattr(tape, "_UNTIL", 10**9)
    assert run(without, 60) == events
    assert torch.equal(with_tapes.weights, without.weights)
