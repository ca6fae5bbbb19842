"""Callbacks and runs for the tests of this folder."""

from simulation.small import tiny

import secureafl

ATTACKED = {"rounds": 40, "threads": 1, "evaluation": {"every": 10, "late": 2}}
ATTACKED |= {"defense": "norm_clipping", "attack": {"kind": "sign_flip", "factor": 5.0}}


def attacked(**changes):
    """Forty rounds under attack, with four evaluations."""
    return tiny(**ATTACKED | changes)


class Listener(secureafl.Callback):
    """Keeps all that it is told, by the name of the run."""

    def __init__(self):
        self.started, self.events, self.ended = {}, {}, {}

    def on_start(self, run, experiment):
        assert run.name not in self.started
        self.started[run.name], self.events[run.name] = experiment, []

    def on_event(self, run, event):
        assert run.name not in self.ended
        self.events[run.name].append(event)

    def on_end(self, run, result):
        self.ended[run.name] = result


class Failing(Listener):
    """Fails at the fifth event."""

    def on_event(self, run, event):
        super().on_event(run, event)
        if len(self.events[run.name]) == 5:
            raise OSError("the disk\nis full")
