"""The search: many attacks in short runs, the best of them longer, the last few on other seeds.

`stages` yields the runs of each stage and expects them to be done when it is asked for the next;
what runs them is not its business. All that it learns is in the run folders. So a search that was
killed is started again from the beginning, finds most runs done, proposes the same attacks, and
ends with the same result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment
from secureafl.redteam.folder import OUTCOME, RUNS, cell_name, claim, score_of
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.outcome import Trial, held_out_scores, most_harmful, write_outcome
from secureafl.redteam.plan import FINALISTS, NO_ATTACK, Plan
from secureafl.redteam.space import find_space
from secureafl.sweep.engines import EngineName, find_engine, run_sweep


class Stage(NamedTuple):
    """Runs that do not depend on each other, for the search's folder of runs."""

    title: str
    cells: dict[str, Experiment]


def search(
    plan: Plan,
    out: Path,
    engine: EngineName = "local",
    workers: int = 0,
    checkpoint_seconds: float = 60.0,
) -> Path:
    """Search, and return the file with the outcome; the same call goes on after a kill."""
    run_cells = find_engine(engine)
    for stage in stages(plan, out):
        print(stage.title, file=sys.stderr)
        for update in run_sweep(run_cells, stage.cells, out / RUNS, workers, checkpoint_seconds):
            if update.state == "failed":
                print(f"{update.cell} failed: {update.message}", file=sys.stderr)
    return out / OUTCOME


def stages(plan: Plan, out: Path) -> Iterator[Stage]:
    """Yield the stages of a search; when the last one has run, the outcome is written."""
    space = find_space(plan.base.task, plan.against == "asr")
    optimiser = Optimiser(space, plan.search_seed, plan.known)
    claim(plan, space, out)
    trials: list[Trial] = []
    while len(trials) < plan.budget:
        attacks = optimiser.ask(min(plan.batch, plan.budget - len(trials)))
        first, last = len(trials) + 1, len(trials) + len(attacks)
        title = f"short runs, attacks {first} to {last} of {plan.budget}{_so_far(trials)}"
        yield Stage(title, {cell_name(a, "short"): plan.short(a) for a in attacks})
        scores = [_score(plan, out, attack, "short") for attack in attacks]
        optimiser.tell(scores)
        found = zip(attacks, scores, strict=True)
        trials += [Trial(number, *one) for number, one in enumerate(found, first)]
    promoted = most_harmful(trials, lambda trial: trial.short, plan.promoted)
    title = f"longer runs of the worst {len(promoted)}{_so_far(promoted)}"
    yield Stage(title, {cell_name(t.attack, "longer"): plan.longer(t.attack) for t in promoted})
    promoted = [t._replace(longer=_score(plan, out, t.attack, "longer")) for t in promoted]
    finalists = most_harmful(promoted, lambda trial: trial.longer, FINALISTS)
    if not finalists:
        raise RunError(f"{out}: no attack could be run; the messages above say why")
    yield _last_stage(plan, finalists)
    finalists = [
        t._replace(held_out=held_out_scores(plan, out, t.attack, plan.against)) for t in finalists
    ]
    later = {trial.number: trial for trial in [*promoted, *finalists]}
    write_outcome(plan, space, out, [later.get(trial.number, trial) for trial in trials])


def _last_stage(plan: Plan, finalists: Sequence[Trial]) -> Stage:
    attacks = [NO_ATTACK, *(trial.attack for trial in finalists)]
    cells = {
        cell_name(attack, f"seed{seed}"): plan.full(attack, seed)
        for seed in plan.held_out
        for attack in attacks
    }
    seeds = ", ".join(map(str, plan.held_out))
    return Stage(f"the worst {len(finalists)} at full length, held-out seeds {seeds}", cells)


def _score(plan: Plan, out: Path, attack: Mapping[str, Any], stage: str) -> float | None:
    return score_of(out / RUNS / cell_name(attack, stage), plan.against)


def _so_far(trials: Sequence[Trial]) -> str:
    worst = most_harmful(trials, lambda trial: trial.short, 1)
    return f"; worst so far {worst[0].short:.3f} by {worst[0].attack['kind']}" if worst else ""
