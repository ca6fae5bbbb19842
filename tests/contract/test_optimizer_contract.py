"""What every server optimiser owes the server."""

from dataclasses import dataclass

import pytest
import torch

from secureafl.optimizers import OPTIMIZERS, Sgd
from secureafl.testing import ContractError, check_optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_keeps_the_contract(kind):
    check_optimizer(OPTIMIZERS[kind]())


def test_momentum_keeps_the_contract():
    check_optimizer(Sgd(0.1, momentum=0.9))


@dataclass(frozen=True)
class Wrong:
    """A sum of steps with one mistake."""

    mistake: str = ""

    def init(self, weights):
        return None if self.mistake == "none" else torch.zeros_like(weights)

    def move(self, state, step):
        if self.mistake == "in place":
            state += step
            return state.clone(), state
        if self.mistake == "host" and float(step.sum()) > 1e30:
            return step, state
        if self.mistake == "alone":
            return state + step
        if self.mistake == "shape":
            return step[1:], state
        if self.mistake == "infinite":
            return step / step.abs(), state
        if self.mistake == "grows":
            return step, torch.cat([state, step])
        if self.mistake == "random":
            return step * torch.rand(()), state
        return step, state + step


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("none", "the state is None"),
        ("in place", "changes state in place"),
        ("host", "reads a tensor on the host"),
        ("alone", r"return \(move, state\)"),
        ("shape", "keep shape and dtype"),
        ("infinite", "not finite"),
        ("grows", "shapes, dtypes and devices of a state never change"),
        ("random", "two equal runs differ"),
    ],
)
def test_mistake_is_told_in_one_line(mistake, said):
    check_optimizer(Wrong())
    with pytest.raises(ContractError, match=said):
        check_optimizer(Wrong(mistake))
