"""Both sides of Theorem 1's bound, and each link of its proof.

With w^0 the first model that counts and delta^t the server's direction less the gradient of F_H:

    mean over t < T of |grad F_H(w^t)|^2  <=  4 (F_H(w^0) - F_H*) / (eta T) + 4 E^2

for eta <= 1 / (4 L) and E^2 any of, from tight to loose: the mean of |delta^t|^2 over t < T; its
maximum, the paper's E_track^2; what its constants make of it. docs/theory.md has the proof.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from secureafl.reproduce.theory.measure import Run, longest_delay

if TYPE_CHECKING:
    from jaxtyping import Float


Of = TypeVar("Of")


class Constants(NamedTuple):
    """The constants of the bound. Estimation error and largest vector are measured over a run."""

    clients: int  # n
    byzantine: int  # b
    learning_rate: float  # eta
    max_staleness: int  # tau_max
    smoothness: float  # L
    heterogeneity: float  # zeta
    noise: float  # sigma
    estimation: float  # epsilon_est
    largest: float  # G
    minimum: float  # F_H*
    gap: float  # F_H(w^0) - F_H*

    @property
    def honest(self) -> int:
        """The number of honest clients, m."""
        return self.clients - self.byzantine

    @property
    def small_step(self) -> bool:
        """Whether eta <= 1 / (4 L), but for rounding."""
        return self.step <= 0.25 * (1 + 1e-12)

    @property
    def step(self) -> float:
        """The learning rate in units of 1 / L."""
        return self.learning_rate * self.smoothness

    @property
    def honest_majority(self) -> bool:
        """Whether b < (n - 1) / 2."""
        return margin(self.clients - 1, self.byzantine) > 0

    @property
    def median_constant(self) -> float:
        """C_med, the provable one: 4 m / (ceil((n - 1) / 2) - b); infinite without a majority."""
        if not self.honest_majority:
            return math.inf
        return 4 * self.honest / margin(self.clients - 1, self.byzantine)

    @property
    def tracking_bound(self) -> float:
        """What the theorem bounds E_track^2 with."""
        moved = self.smoothness * self.learning_rate * self.max_staleness * self.largest
        squares = (self.heterogeneity, self.estimation, self.noise, moved)
        return self.median_constant * sum(x**2 for x in squares)


class Sides(NamedTuple, Generic[Of]):
    """The left side of the bound and its three right sides, or a figure of each."""

    left: Of
    mean: Of  # E^2 is the mean of |delta|^2 so far
    track: Of  # E^2 is the maximum of |delta|^2 in the whole run
    explicit: Of  # E^2 is `tracking_bound`


class Holds(NamedTuple):
    """The parts of the theorem that hold in a run."""

    median: bool  # every round: |delta|^2 <= scatter of the honest vectors / margin
    tracking: bool  # E_track^2 <= what the constants make of it
    descent: bool  # every T: the left side is below the tightest right side
    theorem: bool  # every T: and below that with E_track
    explicit: bool  # every T: and below the one from constants


def margin(voices: int, byzantine: int) -> int:
    """Honest vectors on the median's far side at least, wherever the attackers' lie."""
    return -(-voices // 2) - byzantine


def constants_of(run: Run) -> Constants:
    """Take the known constants from the problem, the other two from the measurements."""
    made, objective = run.experiment, run.objective
    return Constants(
        made.clients,
        made.num_malicious,
        made.scheduled_training.learning_rate,
        longest_delay(made),
        objective.smoothness,
        objective.heterogeneity,
        objective.noise,
        float(np.sqrt(run.rounds.estimation.max())),
        float(np.sqrt(max(run.earlier, run.rounds.largest.max()))),
        objective.value(objective.optimum),
        run.gap,
    )


def promised(own: Constants, inside: Constants) -> Constants:
    """What the theorem promised before the run left its conditions.

    It takes the estimation error and the largest vector for given. Measured on the run itself they
    grow with whatever goes wrong; here they are what they were inside, as is the median's constant.
    """
    return own._replace(
        byzantine=inside.byzantine, estimation=inside.estimation, largest=inside.largest
    )


def sides_of(run: Run, constants: Constants) -> Sides[Float[np.ndarray, " rounds"]]:
    """The bound at every T; entry T - 1 is that of the first T rounds."""
    count = np.arange(1, len(run.rounds.gradient) + 1)
    start = 4 * constants.gap / (constants.learning_rate * count)
    tracking = run.rounds.tracking
    return Sides(
        np.cumsum(run.rounds.gradient) / count,
        start + 4 * np.cumsum(tracking) / count,
        start + 4 * tracking.max(),
        start + 4 * constants.tracking_bound,
    )


def check(run: Run, constants: Constants) -> Holds:
    """Check every link of the proof."""
    sides, rounds = sides_of(run, constants), run.rounds
    ahead = -(-rounds.voices // 2) - rounds.byzantine
    scatter = np.divide(rounds.scatter, ahead, where=ahead > 0, out=np.full(len(ahead), np.inf))
    return Holds(
        # Measured in float32; without noise both sides can be nothing but rounding.
        bool((ahead > 0).all() and (rounds.tracking <= scatter * (1 + 1e-4) + 1e-9).all()),
        bool(rounds.tracking.max() <= constants.tracking_bound),
        bool((sides.left <= sides.mean).all()),
        bool((sides.left <= sides.track).all()),
        bool((sides.left <= sides.explicit).all()),
    )
