"""A deployment's run again, through the server's round alone: the same arrivals, the same bits.

That holds where clients trained on the shares that the experiment deals out, without noise of
their own. Who arrived when and on which model is read from events.jsonl.
"""

import dataclasses
from collections import Counter

import torch

from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.core.flat_model import flatten
from secureafl.core.server import Upload
from secureafl.deployment.samples import InputFacts
from secureafl.deployment.secret import read_secret
from secureafl.deployment.trainer import ClientOptions, Trainer
from secureafl.runs.events import read_events
from secureafl.runtime.records import stored_experiment
from secureafl.runtime.setup import make_server, seeded_model


def replayed_weights(path, attack=None):
    """The final weights; `attack` is what malicious clients played, if not the experiment's."""
    made, events = stored_experiment(path), read_events(path)
    events = [e for e in events if isinstance(e, ArrivalEvent | ForgottenEvent)]
    facts = InputFacts.of(made.task.load())
    honest = Trainer(dataclasses.replace(made, malicious=0), ClientOptions(), facts)
    malicious = Trainer(made, ClientOptions(attack=attack or made.attack), facts)
    model = seeded_model(made, torch.device("cpu"))
    server = make_server(made, model, None, seed=read_secret(path))
    state = server.start(flatten(model))
    answers = Counter(e.round - e.staleness for e in events if isinstance(e, ArrivalEvent))
    state.ledger.lend(0, state.weights, answers[0])
    for event in events:
        if isinstance(event, ForgottenEvent):
            state = server.forget(state, event.client)
            continue
        version, trainer = event.round - event.staleness, malicious if event.malicious else honest
        base = state.ledger.look_up(version)
        trained = trainer.train(base.numpy().copy(), event.client, version)
        update = torch.from_numpy(trained.update)
        _, state = server.receive(state, Upload(event.client, version, update))
        state.ledger.lend(state.round, state.weights, answers[state.round])
    return state.weights
