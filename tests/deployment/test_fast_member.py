"""One malicious member of few: first to come, and many times as fast as the others.

Once with nodes that are functions in place of network and processes, where many rounds fit into a
test, and once over a real network. What such a member can do is to delay the others: the shorter
a run, the more it is.
"""

import functools
import os
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from deployment.direct import DirectMember
from deployment.grids import Here, reply
from deployment.network import Network
from flwr.app import RecordDict

from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.deployment.client_app import named_arrays
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.options import Options
from secureafl.deployment.server_app import RequestLoop
from secureafl.deployment.worker import Job, TrainerCache, options_from
from secureafl.experiment import from_mapping
from secureafl.runs.events import read_events

TASK, ONE_LAYER = "deployment.small_clothes:FewClothes", "deployment.small_clothes:OneLayer"
# Uploads of all others together: in the loop, and over a network.
HONEST, LIVE_HONEST = (int(os.environ.get("SECUREAFL_HONEST", usual)) for usual in (270, 63))
SEED = int(os.environ.get("SECUREAFL_SEED", "1"))
RATE = 0.02  # of learning


def most_harm(honest):
    """Of a run of so many uploads. Where the member steers, the error is 0.9."""
    return 0.05 if honest >= 270 else 0.2


class Cell(NamedTuple):
    """How many members there are, and how many uploads the first makes for one of another's."""

    clients: int
    pace: int

    def rounds(self, honest, name):
        """Of a run in which the others upload so often together."""
        return honest + (name not in SLOW) * honest // (self.clients - 1) * self.pace


CELLS = [Cell(clients, pace) for clients in (4, 10) for pace in (1, 20, 60)]
LIVE_CELLS = [Cell(4, 20), Cell(10, 60)]
EXPERIMENT = """
seed = {seed}
rounds = {rounds}
clients = {clients}
threads = 1
device = "cpu"
partition = "iid"

[task]
kind = "{task}"

[training]
learning_rate = 0.02

[evaluation]
every = 3
late = 1

[deployment]
deadline = {deadline}
poll_seconds = 0.2
answers_per_minute = 1000000
"""
ABSENT = "absent"  # it is connected and says nothing
SLOW = (ABSENT, "NaN")  # refused answers are no rounds, and the server makes their sender wait
# What a member can do with what it knows: its gradient, the model, and how often it has uploaded.
LIVE_STRATEGIES = {
    "own gradient reversed": lambda g, w, n: -g,
    "pull to zero": lambda g, w, n: w / RATE,
    "norm 50, then 1e18": lambda g, w, n: -g / np.linalg.norm(g) * (9.9e17 if n else 50.0),
    "NaN": lambda g, w, n: np.full_like(g, np.nan),
}
STRATEGIES = LIVE_STRATEGIES | {
    "reversed x 10": lambda g, w, n: -10 * g,
    "noise of norm 200": lambda g, w, n: directed(n, 200.0, g),
    "one direction": lambda g, w, n: directed(0, np.linalg.norm(g), g),
    "reversed after 20 uploads": lambda g, w, n: -g if n >= 20 else g,
    "reversed every second time": lambda g, w, n: -g if n % 2 else g,
    "next to nothing": lambda g, w, n: 1e-30 * g,
}
_TRAINING = threading.Lock()


def directed(number, length, like):
    """A vector of some length in the direction with this number."""
    drawn = np.random.default_rng(number).normal(size=like.shape)
    return length * drawn / np.linalg.norm(drawn)


@functools.cache
def trainers(task):
    """One trainer for all members of this process."""
    return TrainerCache(options_from({"task": task}))


def answer(request, uploads, strategy=lambda g, w, n: g, task=TASK):
    """The records of an honest client, or what a strategy makes of its update."""
    arrays, asked = request.content["arrays"], request.content["request"]
    weights = np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])
    with _TRAINING:
        update, _ = trainers(task).train(
            Job(**{name: asked[name] for name in Job._fields}), weights
        )
    vector = strategy(update, weights, uploads).astype(np.float32)
    shapes = {name: array.shape for name, array in arrays.items()}
    return RecordDict({"update": named_arrays(vector, shapes)})


def late_error(run, rounds):
    """The mean test error over the last fifth of a run."""
    events = list(read_events(run))
    arrivals = [event for event in events if isinstance(event, ArrivalEvent)]
    its = [event.accepted for event in arrivals if event.client == 0]
    found = [event for event in events if isinstance(event, EvaluationEvent)]
    error = float(np.mean([e.metrics["ter"] for e in found if e.round >= 0.8 * rounds]))
    print(f"error {error:.4f}; of the first client {sum(its)} of {len(its)} uploads accepted")
    assert len(arrivals) == rounds
    return error


class Paced(Here):
    """The first node comes before the others and answers at every turn, they at every so many."""

    def __init__(self, nodes, pace):
        super().__init__(nodes)
        self._pace, self._turns = pace, 0

    def get_node_ids(self):
        return list(self.nodes)[: 1 if self._turns < 5 else None]

    def pull_messages(self, message_ids):
        self._turns += 1
        first = next(iter(self.nodes))
        slow = self._turns % self._pace != 0
        node = {name: message.metadata.dst_node_id for name, message in self.waiting.items()}
        return super().pull_messages([n for n in node if not slow or node[n] == first])


def error_of_loop(folder, cell, name, seed=SEED, task=TASK, rate=RATE):
    """The error at the end of a run of the ServerApp's loop."""
    rounds, strategy = cell.rounds(HONEST, name), STRATEGIES.get(name)
    values = {"clients": cell.clients, "rounds": rounds, "seed": seed, "task": task}
    values |= {"threads": 1, "device": "cpu", "partition": "iid"}
    values |= {"training": {"learning_rate": rate}}
    experiment = from_mapping({**values, "evaluation": {"every": rounds // 40, "late": 1}})
    uploads = [0]

    def attack(message):
        uploads[0] += 1
        given = message, uploads[0] - 1, strategy, task
        return [reply(message, answer(*given))] if strategy else []

    def honest(message):
        return [reply(message, answer(message, 0, task=task))]

    others = dict.fromkeys(range(6, 5 + cell.clients), honest)
    server = Coordinator(experiment)
    server.create(folder / "run")
    server.open(folder / "run")
    options = Options(answers_per_minute=10**9, deadline=10**6)
    grid = Paced({5: attack, **others}, cell.pace)
    loop = RequestLoop(grid, server, options, lambda *_, **__: None)
    while not server.finished:
        loop.turn()
    server.close()
    return late_error(folder / "run", rounds)


def error_over_network(folder, cell, name):
    """The error at the end of a run of real processes, but for the members'."""
    rounds, strategy = cell.rounds(LIVE_HONEST, name), STRATEGIES.get(name)
    experiment = EXPERIMENT.replace("{seed}", str(SEED))
    with Network(folder, rounds, cell.clients, task=TASK, experiment=experiment) as net:
        net.serve()
        names = [f"member{number}" for number in range(cell.clients)]
        net.make_keys(*names)
        net.wait(lambda: len(net.told("keys")) == len(names), 200, "keys")

        def attack(request, uploads):
            return answer(request, uploads, strategy) if strategy else None

        def honest(request, uploads):
            while name not in SLOW and fast.uploads < cell.pace * (uploads + 1):
                time.sleep(0.01)
            return answer(request, uploads)

        fast = DirectMember(net, names[0], attack)
        fast.start()
        net.wait(lambda: fast.failed or net.told("here"), 300, "the first member")
        net.wait(lambda: fast.failed or not strategy or fast.uploads > 1, 300, "uploads")
        others = [DirectMember(net, key, honest) for key in names[1:]]
        for member in others:
            member.start()
        net.wait_finished(7200)
        assert [member.failed for member in (fast, *others)] == [None] * len(names)
        print(f"{name}, {cell}: {len(net.told('refused'))} answers refused", end="; ")
    return late_error(net.run, rounds)


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The errors where the first member is silent."""
    found = {}

    def find(measure, cell):
        if (measure, cell) not in found:
            folder = tmp_path_factory.mktemp("without")
            found[measure, cell] = measure(folder, cell, ABSENT)
        return found[measure, cell]

    return find


def cells(given):
    return pytest.mark.parametrize("cell", given, ids=lambda cell: f"{cell.clients}at{cell.pace}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@cells(CELLS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_one_member_that_comes_first_does_no_harm(tmp_path, without, cell, name):
    assert error_of_loop(tmp_path, cell, name) <= without(error_of_loop, cell) + most_harm(HONEST)


@pytest.mark.slow
@pytest.mark.timeout(900)
@cells(CELLS)
def test_a_single_layer_is_not_pulled_to_zero(tmp_path, cell):
    def error(name, seed):
        return error_of_loop(tmp_path / f"{name}-{seed}", cell, name, seed, ONE_LAYER, 0.05)

    # At this rate the error of a single run leaps by more than is asked for here.
    pulled, usual = (np.mean([error(n, k) for k in (1, 2, 3)]) for n in ("pull to zero", ABSENT))
    assert pulled <= usual + most_harm(HONEST)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@cells(LIVE_CELLS)
@pytest.mark.parametrize("name", LIVE_STRATEGIES)
def test_over_a_network_it_only_delays(tmp_path, without, cell, name):
    live = error_over_network(tmp_path, cell, name)
    assert live <= without(error_over_network, cell) + most_harm(LIVE_HONEST)
