"""What a search found: every attack with its scores, the worst one, and which parts mattered.

The result is a mean over held-out seeds, of runs at full length. Scores of short and longer runs
choose who gets there, and are no result: the best of many such scores is a lucky one.
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
from secureafl.redteam.folder import OUTCOME, RUNS, WORST, cell_name, metric_of, score_of
from secureafl.redteam.plan import NO_ATTACK, Plan
from secureafl.redteam.space import Space
from secureafl.runs.layout import to_json

BySeed = Mapping[int, float | None]


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
    """Write `redteam.json` and the worst attack as an experiment."""
    best = most_harmful(trials, lambda trial: trial.mean, 1)
    if not best:
        raise RunError(f"{out}: no attack has a run of full length for each held-out seed")
    worst, first = best[0], plan.held_out[0]
    run = f"{RUNS}/{cell_name(worst.attack, f'seed{first}')}"
    scored = [(trial.attack, trial.short) for trial in trials if trial.short is not None]
    outcome = {
        "command": plan.command,
        "metric": metric_of(out / run, plan.against),
        "without_attack": _figures(held_out_scores(plan, out, NO_ATTACK, "error")),
        "worst": {
            **_described(worst),
            "error": _figures(held_out_scores(plan, out, worst.attack, "error")),
            "run": run,
        },
        "by_attack": effects_of_attacks(scored),
        "by_part": effects_of_parts(scored, worst.attack["kind"], space),
        "plan": plan.to_mapping(),
        "trials": [_described(trial) for trial in trials],
    }
    put_file(out / WORST, write_experiment(plan.full(worst.attack, first)).encode())
    put_file(out / OUTCOME, to_json(_plain(outcome), indent=1).encode())


def held_out_scores(plan: Plan, out: Path, attack: Mapping[str, Any], against: str) -> BySeed:
    """The scores of an attack's runs at full length."""
    runs = {seed: out / RUNS / cell_name(attack, f"seed{seed}") for seed in plan.held_out}
    return {seed: score_of(run, against) for seed, run in runs.items()}


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
    """What JSON can hold: a score that is not finite is the word `diverged`."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return "diverged" if isinstance(value, float) and not math.isfinite(value) else value
