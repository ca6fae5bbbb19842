import pytest
import torch

from secureafl.core.ledger import Ledger
from secureafl.core.protocols import Defense
from secureafl.core.server import LARGEST_NORM, Server, Upload
from secureafl.defenses import AsyncSgd


def test_model_is_there_while_answers_are_expected():
    ledger, model = Ledger(), torch.ones(2)
    ledger.lend(3, model, answers=2)
    assert ledger.look_up(3) is model
    ledger.settle(3)
    assert ledger.look_up(3) is model
    ledger.settle(3)
    assert ledger.look_up(3) is None
    assert ledger.models() == {}


def test_lending_again_adds_answers():
    ledger, model = Ledger(), torch.ones(2)
    ledger.lend(0, model)
    ledger.lend(0, model)
    ledger.settle(0)
    assert ledger.look_up(0) is model
    ledger.settle(0)
    assert ledger.look_up(0) is None


def test_model_nobody_will_answer_to_is_not_kept():
    ledger = Ledger()
    ledger.lend(5, torch.ones(2), answers=0)
    assert ledger.look_up(5) is None
    assert ledger.models() == {}


@pytest.mark.parametrize("version", [-1, 0, 10**20])
def test_unknown_version_has_no_model(version):
    assert Ledger().look_up(version) is None


def test_settling_one_version_leaves_the_others():
    ledger = Ledger()
    for version in range(4):
        ledger.lend(version, torch.full((1,), float(version)))
    ledger.settle(2)
    assert list(ledger.models()) == [0, 1, 3]


class Watching:
    """A defence that notes what it is shown."""

    def __init__(self):
        self.seen = []

    def init(self, num_clients, weights):
        return ()

    def step(self, state, arrival, server):
        self.seen.append((int(arrival.client), int(arrival.staleness), arrival.base, server))
        return AsyncSgd().step(state, arrival, server)


def test_staleness_and_base_come_from_the_ledger():
    watching = Watching()
    assert isinstance(watching, Defense)
    server = Server(watching, num_clients=2, learning_rate=1.0)
    first = torch.zeros(1)
    state = server.start(first)
    state.ledger.lend(0, first, answers=3)
    for client in (0, 1, 0):
        _, state = server.receive(state, Upload(client, 0, torch.ones(1)))
    assert [(client, staleness) for client, staleness, _, _ in watching.seen] == [
        (0, 0),
        (1, 1),
        (0, 2),
    ]
    assert all(base is first for _, _, base, _ in watching.seen)
    assert [view.round for *_, view in watching.seen] == [0, 1, 2]
    assert [float(view.weights) for *_, view in watching.seen] == [0.0, -1.0, -2.0]


def test_refused_upload_uses_up_its_answer():
    server = Server(AsyncSgd(), num_clients=1, learning_rate=1.0)
    state = server.start(torch.zeros(1))
    state.ledger.lend(0, state.weights)
    decision, state = server.receive(state, Upload(0, 0, torch.tensor([torch.nan])))
    assert decision.reason == "not_finite"
    decision, state = server.receive(state, Upload(0, 0, torch.ones(1)))
    assert decision.reason == "unknown_version"


class Runaway:
    """A defence whose own arithmetic goes wrong."""

    def __init__(self, value):
        self.value = value

    def init(self, num_clients, weights):
        return ()

    def step(self, state, arrival, server):
        decision, state = AsyncSgd().step(state, arrival, server)
        return decision._replace(direction=torch.full_like(arrival.base, self.value)), state


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 10 * LARGEST_NORM])
def test_direction_without_bounds_never_moves_the_model(value):
    server = Server(Runaway(value), num_clients=1, learning_rate=1.0)
    state = server.start(torch.ones(3))
    state.ledger.lend(0, state.weights)
    decision, state = server.receive(state, Upload(0, 0, torch.ones(3)))
    assert not decision.ready
    assert torch.equal(state.weights, torch.ones(3))


@pytest.mark.parametrize(
    ("client", "version", "reason"),
    [
        (5, 0, "unknown_client"),
        (-1, 0, "unknown_client"),
        (None, 0, "unknown_client"),
        ("0", 0, "unknown_client"),
        (0, 7, "unknown_version"),
        (0, None, "unknown_version"),
        (0, [0], "unknown_version"),
        (0, "0", "unknown_version"),
    ],
)
def test_stranger_uses_up_nobodys_answer(client, version, reason):
    server = Server(AsyncSgd(), num_clients=2, learning_rate=1.0)
    state = server.start(torch.ones(3))
    state.ledger.lend(0, state.weights)
    decision, state = server.receive(state, Upload(client, version, torch.ones(3)))
    assert not decision.accepted
    assert decision.reason == reason
    decision, state = server.receive(state, Upload(1, 0, torch.ones(3)))
    assert decision.accepted, "the honest client's answer is still expected"
    assert torch.equal(state.weights, torch.zeros(3))
