"""The optimiser that proposes attacks: Optuna's tree-structured Parzen estimator.

It is asked for a batch, and told the scores of the whole batch in its order. With the same seed
and the same scores it proposes the same attacks, whoever was computed first.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.redteam.space import Dimension, Range, Space, known_attacks, matters, readable

_TRIES = 30  # proposals for one place, while they are attacks that were proposed before


class Optimiser:
    """Proposes attacks, the known ones first; higher scores are more harm."""

    def __init__(self, space: Space, seed: int, known: int) -> None:
        self._space, self._optuna = space, import_optuna()
        self._seen: set[str] = set()
        self._open: list[Any] = []
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        # Settings one by one: chosen together they would need more attacks than a budget has.
        self._estimator = self._optuna.samplers.TPESampler(seed=seed, multivariate=False)
        self._random = self._optuna.samplers.RandomSampler(seed=seed)
        self._study = self._optuna.create_study(direction="maximize", sampler=self._estimator)
        for attack in list(known_attacks(space))[:known]:
            self._study.enqueue_trial(_parameters(attack))

    def ask(self, count: int) -> list[dict[str, Any]]:
        """Propose some attacks, as tables of settings; `tell` must follow."""
        return [self._propose() for _ in range(count)]

    def tell(self, scores: Sequence[float | None]) -> None:
        """Take in the scores of the attacks asked for, in their order; None: it did not run."""
        for trial, score in zip(self._open, scores, strict=True):
            if score is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, score)
        self._open = []

    def _propose(self) -> dict[str, Any]:
        """The next attack; where few are left, one that was proposed before, which is no work.

        An attack without settings can be proposed once only, but stays the best if it was. So what
        comes after a repetition is drawn at random.
        """
        for tries in itertools.count(1):
            self._study.sampler = self._estimator if tries == 1 else self._random
            trial = self._study.ask()
            attack = self._attack(trial)
            text = json.dumps(attack, sort_keys=True)
            if text not in self._seen or tries == _TRIES:
                break
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._seen.add(text)
        self._open.append(trial)
        return attack

    def _attack(self, trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("attack", list(self._space))
        attack = {"kind": kind}
        for name, dimension in self._space[kind].items():
            if matters(name, attack):
                attack[name] = readable(_suggest(trial, f"{kind}.{name}", dimension))
        return attack


def _parameters(attack: dict[str, Any]) -> dict[str, Any]:
    """An attack as Optuna's parameters, which are named after attack and setting."""
    kind = attack["kind"]
    settings = {f"{kind}.{name}": value for name, value in attack.items() if name != "kind"}
    return {"attack": kind, **settings}


def _suggest(trial: Any, name: str, dimension: Dimension) -> Any:
    if not isinstance(dimension, Range):
        return trial.suggest_categorical(name, list(dimension))
    suggest = trial.suggest_int if isinstance(dimension.low, int) else trial.suggest_float
    return suggest(name, dimension.low, dimension.high, log=dimension.log)


def import_optuna() -> Any:
    """The package Optuna; an error that says how to install it, if it is missing."""
    try:
        return importlib.import_module("optuna")
    except ImportError:
        remedy = 'install it with: pip install "secureafl[redteam]"'
        raise ConfigError(f"redteam needs Optuna; {remedy}") from None
