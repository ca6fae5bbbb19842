from typing import Any, NamedTuple

import pytest
import torch

from secureafl.core.trees import clone, name_tensors, rebuild


class Inner(NamedTuple):
    count: torch.Tensor
    empty: tuple


class Outer(NamedTuple):
    rows: torch.Tensor
    inner: Any


def example():
    return Outer(torch.arange(6.0).view(2, 3), (Inner(torch.tensor(4), ()), torch.tensor(True)))


def test_every_tensor_gets_a_dotted_name():
    names = name_tensors(example(), "state")
    assert list(names) == ["state.rows", "state.inner.0.count", "state.inner.1"]
    assert int(names["state.inner.0.count"]) == 4


def test_rebuilt_state_has_the_same_structure_and_values():
    state = example()
    found = rebuild(example(), "state", name_tensors(state, "state"))
    assert isinstance(found, Outer)
    assert isinstance(found.inner[0], Inner)
    assert found.inner[0].empty == ()
    assert torch.equal(found.rows, state.rows)
    assert found.inner[1].dtype == torch.bool


def test_shapes_come_from_the_saved_tensors():
    named = name_tensors(example(), "s") | {"s.rows": torch.ones(9)}
    assert rebuild(example(), "s", named).rows.shape == (9,)


def test_stateless_is_an_empty_tuple():
    assert name_tensors((), "attack") == {}
    assert rebuild((), "attack", {}) == ()


def test_missing_tensor_is_named():
    with pytest.raises(KeyError, match=r"s\.inner\.0\.count"):
        rebuild(example(), "s", {"s.rows": torch.ones(1)})


def test_clone_shares_nothing_with_the_state():
    state = example()
    copy = clone(state)
    before = {name: tensor.clone() for name, tensor in name_tensors(state, "").items()}
    for tensor in name_tensors(copy, "").values():
        tensor.zero_()
    assert isinstance(copy.inner[0], Inner)
    assert all(torch.equal(name_tensors(state, "")[name], old) for name, old in before.items())
