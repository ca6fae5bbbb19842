"""Searches that take moments, with runs in this process, or with results that are made up."""

import json
import math
import sys
from pathlib import Path

from simulation.small import tiny

from secureafl.redteam.folder import RUNS
from secureafl.redteam.plan import Plan
from secureafl.redteam.search import stages
from secureafl.sweep.cells import unfinished
from secureafl.sweep.cluster import run_group

BUDGET = 6


def tiny_plan(**changes):
    """A search against a tiny experiment."""
    base = {"rounds": 32, "defense": "kardam", **changes.pop("base", {})}
    return Plan(tiny(**base), **{"budget": BUDGET, "held_out": (101, 102), **changes})


def engine_here(cells, out, workers=0, checkpoint_seconds=60.0, apart=False):
    """An engine of the sweep that runs cells one by one in this process."""
    updates, tasks = unfinished(cells, out)
    yield from updates
    yield from run_group(tasks, checkpoint_seconds, Path.cwd())


def search_here(plan, out):
    """The whole search, in this process."""
    for stage in stages(plan, out):
        list(engine_here(stage.cells, out / RUNS))
    return json.loads((out / "redteam.json").read_text())


def pretend(plan, out, score):
    """The whole search with results that `score(stage number, experiment)` makes up.

    None: the run failed; infinite: it diverged. Returns the outcome and the stages.
    """
    seen = []
    for number, stage in enumerate(stages(plan, out)):
        seen.append(stage)
        for name, experiment in stage.cells.items():
            figure = score(number, experiment)
            if figure is not None:
                (out / RUNS / name).mkdir(parents=True, exist_ok=True)
                late = figure if math.isfinite(figure) else None
                metrics = {metric: {"late_mean": late} for metric in ("ter", "asr")}
                (out / RUNS / name / "result.json").write_text(json.dumps({"metrics": metrics}))
    return json.loads((out / "redteam.json").read_text()), seen


if __name__ == "__main__":
    search_here(tiny_plan(), Path(sys.argv[1]))
