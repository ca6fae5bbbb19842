"""Runs inside the conditions of Theorem 1, and runs outside."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from secureafl.arrivals import Uniform
from secureafl.attacks import Adaptive, Gaussian, MinMax, NoAttack, SignFlip
from secureafl.core.errors import require
from secureafl.core.protocols import Attack
from secureafl.defenses import SecureAfl
from secureafl.estimators import Lbfgs
from secureafl.experiment import Evaluation, Experiment, Training
from secureafl.reproduce.theory.problem import InOrder, Objective, RidgeRegression


@dataclass(frozen=True)
class Case:
    """One experiment, whatever the seed."""

    name: str
    title: str
    step: float  # eta L; the theorem asks for 1/4 at most
    malicious: int  # b
    attack: Attack
    inside: str = ""  # for a case outside the conditions: the one inside that it is compared with
    exact: bool = False  # five equal clients, one parameter, no noise, no delay: delta is 0
    horizon: float = 0.0  # c L of the Corollary's step, which `step` then only bounds; 0: not it
    longer: int = 1  # times as many rounds as the others


@dataclass(frozen=True)
class Scope:
    """The settings that all cases share."""

    clients: int = 20  # n
    rounds: int = 1500

    def __post_init__(self) -> None:
        require(self.clients >= 5, "clients", self.clients, "give 5 or more")

    def cases(self) -> list[Case]:
        """Return all cases, each after the one inside the conditions that it is compared with."""
        flip, few, half = SignFlip(3.0), self.clients // 5, math.ceil((self.clients - 1) / 2)
        honest = NoAttack()
        return [
            Case("largest-step", "sign flip", 0.25, few, flip),
            Case("small-step", "sign flip, small step", 0.025, few, flip),
            Case("most-attackers", "sign flip, most attackers", 0.25, half - 1, flip),
            Case("gaussian", "Gaussian noise", 0.25, few, Gaussian()),
            Case("min-max", "Min-Max", 0.25, few, MinMax()),
            Case("adaptive", "adaptive", 0.25, few, Adaptive()),
            Case("exact", "no error at all", 0.25, 0, honest, exact=True),
            Case("horizon", "step c / sqrt(T)", 0.25, few, flip, horizon=1.0),
            Case("horizon-4x", "step c / sqrt(4 T)", 0.25, few, flip, horizon=1.0, longer=4),
            Case("step-2x", "step twice as large", 0.5, few, flip, "largest-step"),
            Case("step-4x", "step 4 times as large", 1.0, few, flip, "largest-step"),
            Case("step-exact", "no error, step 7 times as large", 1.8, 0, honest, "exact", True),
            Case("no-majority", "one attacker too many", 0.25, half, flip, "most-attackers"),
            Case("rule", "attackers rule", 0.25, 3 * self.clients // 5, flip, "most-attackers"),
        ]

    def experiment(self, case: Case, seed: int) -> Experiment:
        """Return the experiment of a case."""
        task, defense, staleness = RidgeRegression(seed, self.clients), SecureAfl(), 10
        if case.exact:
            # With one parameter the curvature is exact, and no estimate needs a cap.
            task = RidgeRegression(seed, clients=5, parameters=1, spread=0, noise=0)
            defense = SecureAfl(alpha=1, estimator=Lbfgs(max_correction=math.inf))
            staleness = 0
        rounds = self.rounds * case.longer
        smoothness = Objective.of_all(task.measurements()).smoothness
        training = Training(batch_size=1, learning_rate=case.step / smoothness)
        if case.horizon:
            scale = case.horizon / smoothness
            training = replace(training, schedule="horizon", horizon_scale=scale)
        return Experiment(
            seed,
            rounds,
            task.clients,
            case.malicious,
            device="cpu",
            training=training,
            evaluation=Evaluation(every=rounds, late=1),
            task=task,
            partition=InOrder(),
            arrivals=Uniform(staleness),
            defense=defense,
            attack=case.attack,
        )
