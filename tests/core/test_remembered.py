"""Root data that remember what they said of one model."""

import torch

from secureafl.core.remembered import RememberedRootData
from secureafl.core.types import RootData


class Counted:
    """Notes what is computed, and what it was given."""

    labels = torch.tensor([0, 1])

    def __init__(self):
        self.computed = []

    def gradient(self, weights, rows=None):
        self.computed.append(("gradient", rows))
        return weights - 1 if rows is None else weights - rows.sum()

    def outputs(self, weights):
        self.computed.append(("outputs", None))
        return weights[None] * 2


def test_what_all_samples_say_of_the_model_is_computed_once():
    weights, counted = torch.arange(3.0), Counted()
    found = RememberedRootData(counted, weights)
    assert isinstance(found, RootData)
    assert found.labels is counted.labels
    for _ in range(3):
        assert torch.equal(found.gradient(weights), weights - 1)
        assert torch.equal(found.outputs(weights), weights[None] * 2)
    assert counted.computed == [("gradient", None), ("outputs", None)]


def test_everybody_may_write_into_what_they_get():
    weights = torch.arange(3.0)
    found = RememberedRootData(Counted(), weights)
    for compute in (found.gradient, found.outputs):
        first = compute(weights)
        expected = first.clone()
        first.zero_()
        second = compute(weights)
        assert torch.equal(second, expected)
        second.zero_()
        assert torch.equal(compute(weights), expected)


def test_other_models_and_some_of_the_samples_are_computed_each_time():
    weights, counted = torch.arange(3.0), Counted()
    found = RememberedRootData(counted, weights)
    for other in (weights + 1, weights.clone(), weights + 2):
        assert torch.equal(found.gradient(other), other - 1)
        assert torch.equal(found.outputs(other), other[None] * 2)
    for rows in (torch.tensor([0]), torch.tensor([1])):
        assert torch.equal(found.gradient(weights, rows), weights - rows.sum())
    assert len(counted.computed) == 8
