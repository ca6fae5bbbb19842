"""The outcome of runs in one sentence per attack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from secureafl.presentation.labels import UNKNOWN
from secureafl.report.formatting import number
from secureafl.report.tables import Run

_NAMED_ONE_BY_ONE = 4


def headlines(runs: Iterable[Run]) -> list[str]:
    """Describe what came out under each attack, without claiming more than the runs show."""
    scenes: dict[tuple[str, str | None], dict[str, list[Run]]] = {}
    for run in runs:
        variants = scenes.setdefault((run.scene, run.metric), {})
        variants.setdefault(run.variant, []).append(run)
    return [_sentence(scene, list(variants.values())) for (scene, _), variants in scenes.items()]


def _sentence(scene: str, variants: Sequence[Sequence[Run]]) -> str:
    quiet = {"no attack": "Without an attack", UNKNOWN: "Without a known attack"}
    where = quiet.get(scene, f"Under {scene}")
    if len(variants) <= _NAMED_ONE_BY_ONE or not all(_ended(runs) for runs in variants):
        return f"{where}, {_joined([_clause(runs) for runs in variants])}."
    ranked = sorted(variants, key=lambda runs: _late_mean(runs, runs[0].metric))
    extremes = [_clause(ranked[0], "lowest "), _clause(ranked[-1], "highest ")]
    return f"{where}, of {len(variants)} defences, {_joined(extremes)}."


def _clause(runs: Sequence[Run], place: str = "") -> str:
    done = [run for run in runs if run.finished]
    first, metric = runs[0], runs[0].metric
    if metric is None:
        return f"{first.variant} has no evaluation yet"
    used = done or runs
    names = [metric] + (["asr"] if metric != "asr" and "asr" in first.summary.metrics else [])
    values = " and ".join(f"{name.upper()} {number(_late_mean(used, name))}" for name in names)
    seeds = f", mean of {len(used)} runs" if len(used) > 1 else ""
    if done:
        return f"{first.variant} ended {place}at {values} (late mean{seeds})"
    rounds = min(run.rounds for run in runs)
    return f"{first.variant} stood at {values} after {rounds:,} rounds (unfinished{seeds})"


def _ended(runs: Sequence[Run]) -> bool:
    """Whether the runs give a number that can be ranked."""
    metric = runs[0].metric
    finished = all(run.finished for run in runs)
    return finished and metric is not None and not math.isnan(_late_mean(runs, metric))


def _late_mean(runs: Sequence[Run], metric: str | None) -> float:
    means = [run.summary.metrics[metric].mean for run in runs if metric in run.summary.metrics]
    return math.fsum(means) / len(means) if means else math.nan


def _joined(clauses: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(clauses[:-1]), clauses[-1]]))
