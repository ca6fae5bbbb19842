"""The ServerApp's loop with nodes that are functions, and a clock that is set by hand."""

import numpy as np
from deployment.grids import Here, reply
from flwr.app import RecordDict
from simulation.small import tiny

from secureafl.core.events import ArrivalEvent
from secureafl.deployment.client_app import named_arrays
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.options import Options
from secureafl.deployment.server_app import RequestLoop
from secureafl.deployment.worker import Job, TrainerCache, options_from
from secureafl.runs.events import read_events


class Clock:
    """Time passes by hand."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


TRAINERS = TrainerCache(options_from({"task": "reference.tiny_task:TinyTask"}))


def honest(message):
    """What our ClientApp answers."""
    arrays, request = message.content["arrays"], message.content["request"]
    weights = np.concatenate([a.numpy().reshape(-1) for a in arrays.values()])
    update, _ = TRAINERS.train(Job(**{name: request[name] for name in Job._fields}), weights)
    shapes = {name: array.shape for name, array in arrays.items()}
    return [reply(message, RecordDict({"update": named_arrays(update, shapes)}))]


class Server:
    """A request loop with some nodes until the run is finished, or for some turns."""

    def __init__(self, folder, nodes, clock, experiment=None, options=None):
        self.experiment = experiment or tiny(clients=4, rounds=30)
        self.path, self.clock = folder / "run", clock
        self.coordinator = Coordinator(self.experiment)
        self.coordinator.create(self.path)
        self.coordinator.open(self.path)
        self.grid, self.told = Here(nodes), []
        log = lambda what, **facts: self.told.append((what, facts))  # noqa: E731
        self.loop = RequestLoop(self.grid, self.coordinator, options or Options(), log)

    def turns(self, count):
        for _ in range(count):
            if not self.coordinator.finished:
                self.loop.turn()
                self.clock.now += 0.25

    def run(self, turns=10_000):
        self.turns(turns)
        self.coordinator.close()
        return [e for e in read_events(self.path) if isinstance(e, ArrivalEvent)]

    def reasons(self, what="dropped"):
        return {facts.get("reason") for event, facts in self.told if event == what}


def filled(number):
    """A node that answers with this number alone."""

    def answer(message):
        arrays = message.content["arrays"]
        shapes = {name: array.shape for name, array in arrays.items()}
        size = sum(a.numpy().size for a in arrays.values())
        update = np.full(size, number, np.float32)
        return [reply(message, RecordDict({"update": named_arrays(update, shapes)}))]

    return answer
