"""What a search found: every attack with its scores, the worst one, and which parts mattered.

The result is a mean over held-out seeds, of runs at full length. Scores of short and longer runs
choose who gets there, and are no result: the best of many such scores is a lucky one. The result is
the highest of at most a few such means over the same seeds, so it is lucky, too, but little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.core.files import put_file
from secureafl.experiment import write_experiment
from secureafl.redteam.effects import effects_of_attacks, effects_of_parts
from secureafl.redteam.folder import OUTCOME, RUNS, TRIALS, WORST
from secureafl.redteam.plan import NO_ATTACK, Plan
from secureafl.redteam.scores import BySeed, Scores
from secureafl.redteam.space import Space
from secureafl.runs.layout import to_json
from secureafl.runs.origin import origin_of

DIVERGED = "diverged"  # in files, where JSON has no infinite number


class Trial(NamedTuple):
    """One attack, and its score in each run; None: it was not run, or its run failed."""

    number: int  # from 1, in the order of proposals
    attack: Mapping[str, Any]
    short: float | None
    longer: float | None = None
    held_out: BySeed | None = None

    @property
    def mean(self) -> float | None:
        """The mean over held-out seeds; None unless all of them have a score."""
        return mean_score(self.held_out or {})


def mean_score(by_seed: BySeed) -> float | None:
    """The mean over seeds; None unless there are some and all of them have a score."""
    known = [score for score in by_seed.values() if score is not None]
    return statistics.fmean(known) if known and len(known) == len(by_seed) else None


def most_harmful(
    trials: Sequence[Trial], score: Callable[[Trial], float | None], count: int
) -> list[Trial]:
    """The trials with the highest scores; of equals, those proposed first."""
    scored = [(found, trial) for trial in trials if (found := score(trial)) is not None]
    scored.sort(key=lambda one: (-one[0], one[1].number))
    return [trial for _, trial in scored[:count]]


def write_outcome(plan: Plan, space: Space, out: Path, trials: Sequence[Trial]) -> None:
    """Write what was tried, the worst attack as an experiment, and at last the outcome."""
    best = most_harmful(trials, lambda trial: trial.mean, 1)
    if not best:
        raise RunError(f"{out}: no attack has a run of full length for each held-out seed")
    worst = best[0]
    experiment = plan.full(worst.attack, plan.held_out[0])
    _write_json(out / TRIALS, _tried(space, trials, worst.attack["kind"]))
    put_file(out / WORST, write_experiment(experiment).encode())
    _write_json(out / OUTCOME, _outcome(plan, out, worst))


def _outcome(plan: Plan, out: Path, worst: Trial) -> dict[str, Any]:
    scores, attacks = Scores(plan, out), (worst.attack, NO_ATTACK)
    runs = [run for attack in attacks for run in scores.held_out_runs(attack).values()]
    origin = origin_of(runs)._asdict()
    del origin["hours"]  # it would tell a search that was killed from one that was not
    return {
        "command": plan.command,
        "metric": scores.metric(worst.attack),
        "without_attack": _figures(scores.errors(NO_ATTACK)),
        "worst": {
            **_described(worst),
            "error": _figures(scores.errors(worst.attack)),
            "run": f"{RUNS}/{runs[0].name}",
            "command": plan.run_command(worst.attack, plan.held_out[0]),
        },
        "origin": origin,
        "plan": plan.portable(),
    }


def _tried(space: Space, trials: Sequence[Trial], worst: str) -> dict[str, Any]:
    scored = [(trial.attack, trial.short) for trial in trials if trial.short is not None]
    return {
        "by_attack": effects_of_attacks(scored),
        "by_part": effects_of_parts(scored, worst, space),
        "trials": [_described(trial) for trial in trials],
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    put_file(path, to_json(_plain(value), indent=1).encode())


def _figures(by_seed: BySeed) -> dict[str, Any]:
    return {"mean": mean_score(by_seed), "seeds": {str(k): v for k, v in by_seed.items()}}


def _described(trial: Trial) -> dict[str, Any]:
    scores = {
        "short": trial.short,
        "longer": trial.longer,
        "held_out": _figures(trial.held_out or {}),
    }
    return {"number": trial.number, "attack": dict(trial.attack), **scores}


def _plain(value: Any) -> Any:
    """What JSON can hold: a score that is not finite is a word."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return DIVERGED if isinstance(value, float) and not math.isfinite(value) else value
