"""Searches that take moments, with runs in this process, or with results that are made up."""

import json
import math
import sys
from pathlib import Path

from simulation.small import tiny

from secureafl.experiment import write_experiment
from secureafl.redteam.plan import Plan
from secureafl.redteam.search import stages
from secureafl.sweep.cells import unfinished
from secureafl.sweep.cluster import run_group
from secureafl.sweep.engines import one_thread

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
        list(engine_here(stage.cells, stage.folder))
    return found_in(out)


def found_in(out):
    """What a search found and what it tried."""
    texts = [(out / name).read_text() for name in ("redteam.json", "trials.json")]
    return json.loads(texts[0]) | json.loads(texts[1])


def pretend(plan, out, score):
    """The whole search with results that `score(stage number, experiment)` makes up.

    A score is the error and the success rate of a backdoor, or one number for both. None: the run
    failed; infinite: it diverged. Returns the outcome and the stages.
    """
    seen = list(made_up(stages(plan, out), score))
    return found_in(out), seen


def made_up(stages, score):
    """Yield stages whose runs have got results that are made up."""
    for number, stage in enumerate(stages):
        for name, experiment in stage.cells.items():
            figure = score(number, experiment)
            if figure is not None:
                write_result(stage.folder / name, experiment, figure)
        yield stage


def write_result(run, experiment, figure):
    """Leave what a run leaves that ended with this score."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "experiment.toml").write_text(write_experiment(one_thread(experiment)))
    pair = zip(("ter", "asr"), figure if isinstance(figure, tuple) else (figure,) * 2, strict=True)
    metrics = {name: {"late_mean": f if math.isfinite(f) else None} for name, f in pair}
    (run / "result.json").write_text(json.dumps({"metrics": metrics}))
    session = {"started": "2026-11-16T12:00:00", "device": "NVIDIA H200", "torch": "2"}
    (run / "provenance.json").write_text(json.dumps({"sessions": [session], "data": "all"}))


if __name__ == "__main__":
    search_here(tiny_plan(), Path(sys.argv[1]))
