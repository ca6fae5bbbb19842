"""How much harm was done in the runs of a search, as their folders have it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment
from secureafl.redteam.folder import RUNS, cell_name
from secureafl.redteam.plan import NO_ATTACK, Plan
from secureafl.runs.layout import RESULT, read_json
from secureafl.runtime.records import is_of

BySeed = Mapping[int, float | None]

_SUCCESS = "asr"  # the metric of a backdoor


class Scores:
    """What the runs of a search come to; None: there is no such run, or it has no result."""

    def __init__(self, plan: Plan, out: Path) -> None:
        """`out` is the folder of the search."""
        self._plan, self._out = plan, out

    def short(self, attack: Mapping[str, Any]) -> float | None:
        """The score of an attack's short run."""
        return self._score(self._plan.short(attack), self._run(attack, "short"), early=True)

    def longer(self, attack: Mapping[str, Any]) -> float | None:
        """The score of an attack's longer run."""
        return self._score(self._plan.longer(attack), self._run(attack, "longer"), early=True)

    def held_out(self, attack: Mapping[str, Any]) -> BySeed:
        """The scores of an attack's runs at full length."""
        return {
            seed: self._score(self._plan.full(attack, seed), run)
            for seed, run in self.held_out_runs(attack).items()
        }

    def errors(self, attack: Mapping[str, Any]) -> BySeed:
        """The errors of an attack's runs at full length, whatever the goal of the search."""
        return {
            seed: _error(self._plan.full(attack, seed), run)
            for seed, run in self.held_out_runs(attack).items()
        }

    def held_out_runs(self, attack: Mapping[str, Any]) -> dict[int, Path]:
        """The folders of an attack's runs at full length, by seed."""
        return {seed: self._run(attack, f"seed{seed}") for seed in self._plan.held_out}

    def metric(self, attack: Mapping[str, Any]) -> str:
        """What its scores are: the success rate of a backdoor, or the task's main metric."""
        run = self.held_out_runs(attack)[self._plan.held_out[0]]
        return _SUCCESS if self._plan.against == "asr" else next(iter(_metrics(run)))

    @functools.cached_property
    def without_attack(self) -> float | None:
        """The error of the short run without an attack; asked for when that has ended."""
        return _error(self._plan.short(NO_ATTACK), self._run(NO_ATTACK, "short"))

    @property
    def short_runs_learn(self) -> bool:
        """Whether a short run without an attack learns much, so that one says something."""
        error = self.without_attack
        return error is not None and error < self._error_ceiling / 2

    @functools.cached_property
    def _error_ceiling(self) -> float:
        return self._plan.error_ceiling

    def _run(self, attack: Mapping[str, Any], stage: str) -> Path:
        return self._out / RUNS / cell_name(attack, stage)

    def _score(self, experiment: Experiment, run: Path, early: bool = False) -> float | None:
        """The error; or the success rate of a backdoor in a model that is still good for something.

        A model that names the target class whatever it sees has no backdoor: its score is 0, unless
        it had little time, and models of such `early` runs are like that without an attack, too.
        """
        error = _error(experiment, run)
        if self._plan.against == "error" or error is None:
            return error
        spared = early and not self.short_runs_learn
        if math.isinf(error) or (error >= self._error_ceiling and not spared):
            return 0.0
        return _late(_metrics(run).get(_SUCCESS), run)


def _error(experiment: Experiment, run: Path) -> float | None:
    """The task's main metric; infinite if training diverged."""
    if not (run / RESULT).is_file() or not is_of(experiment, run):
        return None
    return _late(next(iter(_metrics(run).values())), run)


def _metrics(run: Path) -> Mapping[str, Any]:
    with contextlib.suppress(RunError):
        found = read_json(run / RESULT).get("metrics")
        if isinstance(found, Mapping) and found:
            return found
    raise _damaged(run)


def _late(metric: Any, run: Path) -> float:
    """The mean over the late evaluations; infinite where there is none, since they diverged."""
    late = metric.get("late_mean", "") if isinstance(metric, Mapping) else ""
    if late is None:
        return math.inf
    if isinstance(late, int | float) and not isinstance(late, bool) and math.isfinite(late):
        return float(late)
    raise _damaged(run)


def _damaged(run: Path) -> RunError:
    return RunError(f"{run / RESULT}: is no result of a run; delete {run} and it is made again")
