"""The quantities in the proof of Theorem 1, measured each round while the real server runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from secureafl.arrivals import Uniform
from secureafl.core.errors import ConfigError
from secureafl.core.events import ArrivalEvent, Event
from secureafl.core.types import Arrival
from secureafl.defenses.secure_afl import SecureAfl, estimates, last_upload
from secureafl.reproduce.theory.problem import Objective, RidgeRegression
from secureafl.simulation.simulator import Simulation

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.experiment import Experiment

# Squared gradients this large come in no run that gets anywhere; float32 still tells them apart.
DIVERGED = 1e12


class Round(NamedTuple):
    """One arrival. All but the last two are squared norms."""

    gradient: float  # of F_H at the model before it
    tracking: float  # of delta: the step's direction less that gradient
    estimation: float  # of the worst estimate of an honest client less that client's gradient
    drift: float  # of how an honest uploader's gradient changed since it got its model
    noise: float  # of an honest upload less its client's gradient at the model it got
    largest: float  # of the longest vector in the median
    scatter: float  # of the honest vectors in the median less the gradient of F_H, summed
    voices: int  # vectors in the median
    byzantine: int  # those among them that are malicious clients'


class Rounds(NamedTuple):
    """An array for each quantity; `drift` and `noise` are NaN where the uploader was malicious."""

    gradient: Float[np.ndarray, " rounds"]
    tracking: Float[np.ndarray, " rounds"]
    estimation: Float[np.ndarray, " rounds"]
    drift: Float[np.ndarray, " rounds"]
    noise: Float[np.ndarray, " rounds"]
    largest: Float[np.ndarray, " rounds"]
    scatter: Float[np.ndarray, " rounds"]
    voices: Int[np.ndarray, " rounds"]
    byzantine: Int[np.ndarray, " rounds"]


class Run(NamedTuple):
    """A run from the first round that looks back only on rounds with every client known."""

    experiment: Experiment
    objective: Objective
    skipped: int  # rounds before that
    earlier: float  # squared norm of the longest vector in the rounds it looks back on
    gap: float  # F_H less its minimum, at the first model that counts
    rounds: Rounds

    @property
    def diverged(self) -> bool:
        """Whether the run diverged and was given up."""
        return not self.rounds.gradient[-1] <= DIVERGED


def measure(experiment: Experiment) -> Run:
    """Run the experiment, and give up when it diverges."""
    simulation = Simulation(experiment)
    while not simulation.finished and not simulation.defense_state.memory.known.all():
        simulation.advance()
    delay = longest_delay(experiment)
    if simulation.round + delay >= experiment.rounds:
        raise ConfigError(
            f"rounds = {experiment.rounds}: too few for an upload of every client; give more"
        )
    meter = _Meter(simulation)
    # The first stale uploads that count were computed on models of these rounds.
    earlier = max((meter.advance().largest for _ in range(delay)), default=0.0)
    skipped, gap = simulation.round, meter.objective.gap(_array(simulation.weights))
    rounds: list[Round] = []
    while not simulation.finished:
        rounds.append(meter.advance())
        if not rounds[-1].gradient <= DIVERGED:
            break
    columns = Rounds(*map(np.array, zip(*rounds, strict=True)))
    return Run(experiment, meter.objective, skipped, earlier, gap, columns)


def longest_delay(experiment: Experiment) -> int:
    """Return tau_max, the largest staleness."""
    assert isinstance(experiment.arrivals, Uniform)
    return experiment.arrivals.max_staleness


class _Meter:
    """Advances a simulation, and compares what its server holds with what is true."""

    def __init__(self, simulation: Simulation) -> None:
        task, defense = simulation.experiment.task, simulation.experiment.defense
        assert isinstance(task, RidgeRegression)
        assert isinstance(defense, SecureAfl)
        self.objective = Objective(task.measurements(), ~simulation.malicious)
        self._simulation, self._defense = simulation, defense
        self._rate = simulation.experiment.scheduled_training.learning_rate
        self._hessian, self._pulls = self.objective.hessian, self.objective.pulls

    def advance(self) -> Round:
        """One arrival; every client must be known already."""
        simulation, honest = self._simulation, self.objective.honest
        client = int(simulation.trace.client[simulation.round])
        weights, state = simulation.weights, simulation.defense_state
        with simulation.compute:
            vectors = _array(estimates(self._defense, state, weights))
        accepted = _accepted(simulation.advance())
        upload, base = self._last_upload(client)
        before, after = _array(weights), _array(simulation.weights)
        true = self._hessian @ before - self._pulls  # every client's gradient
        gradient = true[honest].mean(axis=0)
        others = np.arange(len(true)) != client
        wrong = _square(vectors - true)[others & honest]
        vectors[client] = upload
        counted = others | accepted
        return Round(
            float(_square(gradient)),
            float(_square((before - after) / self._rate - gradient)),
            float(wrong.max(initial=0)),
            *self._upload_errors(client, upload, base, true[client]),
            float(_square(vectors[counted]).max(initial=0)),
            float(_square(vectors[counted & honest] - gradient).sum()),
            int(counted.sum()),
            int((counted & ~honest).sum()),
        )

    def _upload_errors(
        self, client: int, upload: np.ndarray, base: np.ndarray, now: np.ndarray
    ) -> tuple[float, float]:
        """Drift and noise of an honest upload."""
        if not self.objective.honest[client]:
            return np.nan, np.nan
        then = self._hessian @ base - self._pulls[client]
        return float(_square(then - now)), float(_square(upload - then))

    def _last_upload(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and base; the defence keeps those of rejected uploads too."""
        weights, number = self._simulation.weights, torch.tensor(client)
        like = Arrival(number, number, weights, weights)  # only client and size matter
        gradient, base, _ = last_upload(self._simulation.defense_state, like)
        return _array(gradient), _array(base)


def _accepted(events: list[Event]) -> bool:
    return any(isinstance(event, ArrivalEvent) and event.accepted for event in events)


def _square(vectors: np.ndarray) -> np.ndarray:
    return np.square(vectors).sum(axis=-1)


def _array(vector: torch.Tensor) -> np.ndarray:
    return vector.double().numpy()
