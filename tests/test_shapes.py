"""The check of shapes that `shapes.install` puts around the package finds a wrong one."""

import pytest
import torch
from shapes import ShapeError, checked

from secureafl.aggregators import Mean
from secureafl.attacks import SignFlip
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.defenses import AsyncSgd, FedBuff

ZERO = torch.tensor(0)


def arrival(size):
    return Arrival(ZERO, ZERO, torch.ones(size), torch.ones(size))


def test_plug_ins_are_wrapped_and_right_shapes_pass():
    defense, server = FedBuff(), ServerView(ZERO, torch.ones(3), 0.1)
    assert hasattr(FedBuff.step, "__wrapped__")
    decision, _ = defense.step(defense.init(4, torch.ones(3)), arrival(3), server)
    assert isinstance(decision, Decision)


def test_upload_longer_than_the_model_is_a_wrong_shape():
    server = ServerView(ZERO, torch.ones(3), 0.1)
    with pytest.raises(
        ShapeError, match=r"AsyncSgd.step: server.weights is torch.float32 of shape"
    ):
        AsyncSgd().step((), arrival(4), server)


def test_mask_of_another_number_of_clients_is_a_wrong_shape():
    with pytest.raises(ShapeError, match=r"masked: present is torch.bool of shape \(1,\)"):
        Mean().aggregate((), torch.ones(2, 3), torch.ones(1, dtype=torch.bool))


def test_batch_with_too_few_labels_is_a_wrong_shape():
    with pytest.raises(ShapeError, match=r"SignFlip.poison_batch: labels is"):
        SignFlip().poison_batch((), torch.ones(4, 1, 2, 2), torch.zeros(3), ZERO)


def test_result_of_a_plug_in_with_a_wrong_shape_is_found():
    class Wrong(AsyncSgd):
        @checked
        def step(self, state: tuple[()], arrival: Arrival, server: ServerView) -> "Result":
            decision, state = super().step(state, arrival, server)
            return decision._replace(ready=decision.direction > 0), state

    server = ServerView(ZERO, torch.ones(3), 0.1)
    with pytest.raises(ShapeError, match=r"its result\[0\]\.ready is torch.bool of shape \(3,\)"):
        Wrong().step((), arrival(3), server)


Result = tuple[Decision, tuple[()]]
