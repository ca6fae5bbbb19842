"""A coordinator and clients that are functions: who answers when is always the same."""

import contextlib

import numpy as np
import torch

from secureafl.core.server import name_changing
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.messages import REFUSALS, Answer
from secureafl.deployment.samples import InputFacts
from secureafl.deployment.trainer import ClientOptions, Trainer


def begun(experiment, path):
    server = Coordinator(experiment)
    server.create(path)
    server.open(path)
    return server


def opened(experiment, path):
    server = Coordinator(experiment)
    server.open(path)
    return server


@contextlib.contextmanager
def closed(server):
    """Files are closed, nothing is saved."""
    try:
        yield server
    finally:
        for name in ("_journal", "folder"):
            if hasattr(server, name):
                getattr(server, name).close()


class Clients:
    """Four of them, each with a model it was lent; who answers when is always the same."""

    def __init__(self, experiment, seed=0):
        facts = InputFacts.of(experiment.task.load())
        self.trainer = Trainer(experiment, ClientOptions(), facts)
        self.rng = np.random.default_rng(seed)
        self.lent, self.number = {}, 0

    def turn(self, server):
        for client in range(4):
            if client not in self.lent:
                self.lent[client] = server.lend(), server.weights.numpy().copy()
        client = int(self.rng.integers(4 if server.round < 4 else 3))  # one is silent at the end
        version, weights = self.lent.pop(client)
        self.number += 1
        trained = self.trainer.train(weights, client, version)
        if self.rng.random() < 0.2:
            refused_answer(server, client, version, np.inf)
            return self.turn(server)
        answer = Answer(trained.update, False, trained.attack)
        return server.receive(client, version, f"m{self.number}", answer)


def refused_answer(server, client, version, number):
    """An answer of this number alone comes in, and the request is closed."""
    update = np.full(server.weights.numel(), number, np.float32)
    reason = server.receive(client, version, "m", Answer(update, False, ""))
    assert reason in REFUSALS
    server.cancel(version)
    return reason


def state_of(server):
    named = name_changing(server._state).items()
    return server.round, server.weights.clone(), {name: t.clone() for name, t in named}


def same_state(one, other):
    assert one[0] == other[0]
    assert torch.equal(one[1], other[1])
    assert one[2].keys() == other[2].keys()
    assert all(torch.equal(t, other[2][n]) for n, t in one[2].items())
