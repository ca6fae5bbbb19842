"""Experiments that run in milliseconds."""

from secureafl.experiment import from_mapping

ROUNDS = 12


def tiny(**changes):
    """An experiment that runs in milliseconds."""
    settings = {
        "clients": 6,
        "rounds": ROUNDS,
        "device": "cpu",
        "malicious": 2,
        "root_samples": 20,
        "task": "reference.tiny_task:TinyTask",
        "training": {"batch_size": 4, "learning_rate": 0.1},
        "evaluation": {"every": 1000, "late": 1},
    }
    return from_mapping(settings | changes)


def run(simulation, rounds=ROUNDS):
    """All events up to a round."""
    events = []
    while simulation.round < rounds:
        events += simulation.advance()
    return events
