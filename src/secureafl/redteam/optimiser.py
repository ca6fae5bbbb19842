"""The optimiser that proposes attacks: Optuna's tree-structured Parzen estimator, one per attack.

Every second proposal is a composed attack, the space in which most others lie; the remaining ones
take turns. One estimator for all of them would leave that space as soon as some attack does well
early, and short runs show early harm only.

The optimiser is asked for a batch, and told the scores of the whole batch in its order. With the
same seed and the same scores it proposes the same attacks, whoever was computed first.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.redteam.space import (
    COMPOSED,
    Dimension,
    Range,
    Space,
    known_attacks,
    matters,
    readable,
)

_TRIES = 30  # proposals for one place, while they are attacks that were proposed before


class Optimiser:
    """Proposes attacks, the known ones first; higher scores are more harm."""

    def __init__(
        self, space: Space, seed: int, known: int, start: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Of the first `known` proposals, those of `start` come first, and all of them."""
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._estimators = {
            kind: _Estimator(optuna, kind, dimensions, seed) for kind, dimensions in space.items()
        }
        self._turns = _turns(list(space))
        others = [attack for attack in known_attacks(space) if attack not in start]
        self._known = [*start, *others][: max(known, len(start))]
        self._open: list[tuple[str, Any]] = []

    def ask(self, count: int) -> list[dict[str, Any]]:
        """Propose some attacks, as tables of settings; `tell` must follow."""
        return [self._propose() for _ in range(count)]

    def tell(self, scores: Sequence[float | None]) -> None:
        """Take in the scores of the attacks asked for, in their order; None: it did not run."""
        for (kind, trial), score in zip(self._open, scores, strict=True):
            self._estimators[kind].tell(trial, score)
        self._open = []

    def _propose(self) -> dict[str, Any]:
        known = self._known.pop(0) if self._known else None
        kind = known["kind"] if known else self._next_kind()
        attack, trial = self._estimators[kind].ask(known)
        self._open.append((kind, trial))
        return attack

    def _next_kind(self) -> str:
        """Whose turn it is; attacks that have nothing new to offer pass, unless none has."""
        if all(estimator.exhausted for estimator in self._estimators.values()):
            return next(self._turns)
        return next(kind for kind in self._turns if not self._estimators[kind].exhausted)


def _turns(kinds: Sequence[str]) -> Iterator[str]:
    """Attacks in the order of their turns, for ever: every other one is the composed attack."""
    composed = [kind for kind in COMPOSED if kind in kinds][:1]
    for other in itertools.cycle([kind for kind in kinds if kind not in composed] or composed):
        yield from composed
        yield other


class _Estimator:
    """Proposes settings of one attack."""

    def __init__(
        self, optuna: Any, kind: str, dimensions: Mapping[str, Dimension], seed: int
    ) -> None:
        self._kind, self._dimensions, self._optuna = kind, dimensions, optuna
        # Settings one by one: chosen together they would need more attacks than a budget has.
        self._estimator = optuna.samplers.TPESampler(seed=seed, multivariate=False)
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=self._estimator)
        self._seen: set[str] = set()

    @property
    def exhausted(self) -> bool:
        """Whether the attack has no settings and was proposed."""
        return not self._dimensions and bool(self._seen)

    def ask(self, known: Mapping[str, Any] | None) -> tuple[dict[str, Any], Any]:
        """The attack that is given, or else a new one, with Optuna's trial to tell about it.

        What comes after a repetition is drawn at random; where all that is tried was proposed
        before, it is proposed again, which is no work.
        """
        if known:
            self._study.enqueue_trial({k: v for k, v in known.items() if k != "kind"})
        for tries in itertools.count(1):
            self._study.sampler = self._estimator if tries == 1 else self._random
            trial = self._study.ask()
            attack = self._attack(trial)
            text = json.dumps(attack, sort_keys=True)
            if text not in self._seen or tries == _TRIES:
                break
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._seen.add(text)
        return attack, trial

    def tell(self, trial: Any, score: float | None) -> None:
        """Take in the score of a trial; None: it did not run."""
        if score is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, score)

    def _attack(self, trial: Any) -> dict[str, Any]:
        attack = {"kind": self._kind}
        for name, dimension in self._dimensions.items():
            if matters(name, attack):
                attack[name] = readable(_suggest(trial, name, dimension))
        return attack


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
