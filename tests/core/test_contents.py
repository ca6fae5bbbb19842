"""The checksum of objects and code, by which a run tells that it is of another loss."""

import collections
import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from secureafl.core.contents import checksum

FACTOR = 2


def helped(x):
    return helper(x)


def helper(x):
    return FACTOR * x


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return self.by * x


class Other:
    __init__ = Scaled.__init__

    def __call__(self, x):
        return self.by + x


class Derived(Scaled):
    """Adds nothing."""


def closed(by):
    return lambda x: by * x


def defaults(by):
    def function(x, by=by):
        return by * x

    return function


def tensor(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


PAIRS = {  # alike, and different
    "number": (1, 1, 1.0),
    "truth": (True, True, 1),
    "text": ("1", "1", 1),
    "list": ([1, [2]], [1, [2]], [1, 2]),
    "list of tensors": ([tensor(1), tensor(2)], [tensor(1), tensor(2)], [tensor(2), tensor(1)]),
    "table": ({"a": 1}, {"a": 1}, {"a": 2}),
    "counted": (collections.Counter("ab"), collections.Counter("ab"), collections.Counter("aab")),
    "tensor": (tensor(1, 2), tensor(1, 2), tensor(1, 3)),
    "kind of tensor": (tensor(1), tensor(1), tensor(1, dtype=torch.bfloat16)),
    "shape": (tensor(1, 2), tensor(1, 2), tensor(1, 2)[None]),
    "empty": (tensor(), tensor(), tensor()[None]),
    "array of objects": tuple(np.array([[1], x], object) for x in ("a", "a", "b")),
    "set": ({1, "a", (2,)}, {"a", (2,), 1}, {"b", (2,), 1}),
    "array": (np.arange(3), np.arange(3), np.arange(3.0)),
    "function": (lambda x: x + 1, lambda y: y + 1, lambda x: x + 2),
    "inner function": (lambda: lambda: 1, lambda: lambda: 1, lambda: lambda: 2),
    "what a function holds": (closed(2), closed(2), closed(3)),
    "default": (defaults(2), defaults(2), defaults(3)),
    "partial": tuple(functools.partial(helper, x=x) for x in (1, 1, 2)),
    "object": (Scaled(2), Scaled(2), Scaled(3)),
    "method": (Scaled(2).__call__, Scaled(2).__call__, Other(2).__call__),
    "code of a class": (Scaled(2), Scaled(2), Other(2)),
    "module": (nn.Dropout(0.1), nn.Dropout(0.1), nn.Dropout(0.2)),
    "layers": tuple(nn.Sequential(layer) for layer in (nn.ReLU(), nn.ReLU(), nn.Tanh())),
    "library": (torch.relu, torch.relu, torch.tanh),
    "function of a library": (nn.functional.relu, nn.functional.relu, nn.functional.gelu),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_alike_have_one_checksum_and_others_another(pair):
    first, alike, other = PAIRS[pair]
    assert checksum(first) == checksum(alike) != checksum(other)


def test_what_a_function_names_counts_however_far_away(monkeypatch):
    before = checksum(helped)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert checksum(helped) != before


def test_what_a_class_inherits_counts(monkeypatch):
    before = checksum(Derived(2))
    monkeypatch.setattr(Scaled, "__call__", Other.__call__)
    assert checksum(Derived(2)) != before


def test_object_that_holds_itself_has_a_checksum():
    ring = []
    ring.append(ring)
    assert checksum(ring) != checksum([])


def test_chain_of_any_length_has_a_checksum():
    chain = ends = []
    for _ in range(5000):
        ends.append([])
        ends = ends[0]
    before = checksum(chain)
    ends.append(1)
    assert checksum(chain) != before


def compiled(value):
    return torch.compile(value, backend="eager")


@pytest.mark.parametrize(("value", "other"), [(nn.ReLU(), nn.Tanh()), (helped, defaults(2))])
def test_what_torch_compiles_counts_by_what_it_was(value, other):
    assert checksum(compiled(value)) == checksum(compiled(value)) != checksum(compiled(other))


def hooked(hook):
    layer = nn.Linear(2, 2, bias=False)
    nn.init.ones_(layer.weight)
    layer.handle = layer.register_forward_hook(hook)
    return layer


def test_hooks_count_by_what_they_do():
    one, same = (hooked(lambda layer, inputs, outputs: 2 * outputs) for _ in range(2))
    other = hooked(lambda layer, inputs, outputs: 3 * outputs)
    assert checksum(one) == checksum(same) != checksum(other)


def test_layer_without_weights_yet_has_a_checksum():
    assert checksum(nn.LazyLinear(2)) == checksum(nn.LazyLinear(2)) != checksum(nn.LazyLinear(3))


def test_whether_a_module_trains_or_is_evaluated_does_not_count():
    layer = nn.Dropout().train()
    before = checksum(layer)
    assert checksum(layer.eval()) == before


def test_checksum_is_the_same_in_another_process():
    code = """
import sys
from secureafl.core.contents import checksum
TOLD = {"b": 1, "a": 2}
class Known:
    names = frozenset(["red", "green", "blue"])
    def of(self, x):
        return x in {"one", "two", "three", "four"} or TOLD.get(x)
print(checksum(Known()))
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for code in (code, "# a comment moves all lines\n" + code)
    ]
    assert runs[0].stdout == runs[1].stdout != ""
