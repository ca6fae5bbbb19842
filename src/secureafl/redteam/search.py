"""The search: many attacks in short runs, the best of them longer, the last few on other seeds.

`stages` yields the runs of each stage and expects them to be done when it is asked for the next;
what runs them is not its business. All that it learns is in the run folders. So a search that was
killed is started again from the beginning, finds most runs done, proposes the same attacks, and
ends with the same result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment
from secureafl.redteam.folder import RUNS, cell_name, claim, score_of
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.outcome import Trial, held_out_scores, most_harmful, write_outcome
from secureafl.redteam.plan import LOST, NO_ATTACK, Plan
from secureafl.redteam.space import find_space
from secureafl.toml import on_one_line


class Stage(NamedTuple):
    """Runs that do not depend on each other."""

    title: str
    folder: Path  # in which each has a folder of its name
    cells: dict[str, Experiment]


def stages(plan: Plan, out: Path) -> Iterator[Stage]:
    """Yield the stages of a search; when the last one has run, the outcome is written."""
    space = find_space(plan.base.task, plan.against == "asr")
    optimiser = Optimiser(space, plan.search_seed, plan.known, plan.start)
    claim(plan, space, out)
    trials: list[Trial] = []
    yield from _short_runs(plan, out, optimiser, trials)
    if not (yield from _lost(plan, out, trials)):
        yield from _short_runs(plan, out, optimiser, trials, to_the_end=True)
        yield from _longer_runs(plan, out, trials)
        yield from _full_runs(plan, out, trials)
    write_outcome(plan, space, out, trials)


def _short_runs(
    plan: Plan, out: Path, optimiser: Optimiser, trials: list[Trial], to_the_end: bool = False
) -> Iterator[Stage]:
    """Every attack on the search's seed, batch by batch, added to the trials.

    It ends early when there are enough attacks that leave nothing to be worse. A run without an
    attack is among the first, to tell whether short runs learn anything.
    """
    ceiling, none = plan.ceiling, {cell_name(NO_ATTACK, "short"): plan.short(NO_ATTACK)}
    while len(trials) < plan.budget and (to_the_end or not _enough(plan, out, trials, ceiling)):
        attacks = optimiser.ask(min(plan.batch, plan.budget - len(trials)))
        first, last = len(trials) + 1, len(trials) + len(attacks)
        title = f"short runs, attacks {first} to {last} of {plan.budget}{_so_far(trials)}"
        cells = {cell_name(attack, "short"): plan.short(attack) for attack in attacks}
        cells |= none if not trials else {}
        yield Stage(title, out / RUNS, cells)
        scores = [_score(plan, out, attack, "short") for attack in attacks]
        optimiser.tell(scores)
        found = zip(attacks, scores, strict=True)
        trials += [Trial(number, *one) for number, one in enumerate(found, first)]


def _enough(plan: Plan, out: Path, trials: Sequence[Trial], ceiling: float) -> bool:
    """Whether enough attacks do all the harm there is.

    That means nothing of a rule that learns nothing in a short run: it makes every attack look like
    that.
    """
    if sum(_reaches(trial.short, ceiling) for trial in trials) < LOST:
        return False
    without = score_of(out / RUNS / cell_name(NO_ATTACK, "short"), "error")
    return without is not None and without < plan.error_ceiling / 2


def _reaches(score: float | None, ceiling: float) -> bool:
    return score is not None and score >= ceiling


def _lost(plan: Plan, out: Path, trials: list[Trial]) -> Generator[Stage, None, bool]:
    """Whether nothing can be worse than the worst attack, over whole runs on held-out seeds too.

    It is run so where short runs say that; else there is something left to search for.
    """
    if not _enough(plan, out, trials, plan.ceiling):
        return False
    (worst,) = most_harmful(trials, lambda trial: trial.short, 1)
    yield from _held_out_runs(plan, out, trials, [worst])
    return _reaches(trials[worst.number - 1].mean, plan.ceiling)


def _longer_runs(plan: Plan, out: Path, trials: list[Trial]) -> Iterator[Stage]:
    """The worst of short runs on another seed, whose scores are added to the trials."""
    count = plan.promoted(len(trials))
    promoted = most_harmful(_untried(trials), lambda trial: trial.short, count)
    _require_some(promoted, out)
    title = f"longer runs of the worst {len(promoted)}{_so_far(promoted)}"
    cells = {cell_name(t.attack, "longer"): plan.longer(t.attack) for t in promoted}
    yield Stage(title, out / RUNS, cells)
    for trial in promoted:
        score = _score(plan, out, trial.attack, "longer")
        trials[trial.number - 1] = trial._replace(longer=score)


def _full_runs(plan: Plan, out: Path, trials: list[Trial]) -> Iterator[Stage]:
    """The worst of longer runs, and no attack, on held-out seeds.

    One that leaves nothing to be worse, there too, has no rivals.
    """
    finalists = most_harmful(_untried(trials), lambda trial: trial.longer, plan.finalists)
    _require_some(finalists, out)
    if _reaches(finalists[0].longer, plan.ceiling):
        first = finalists.pop(0)
        yield from _held_out_runs(plan, out, trials, [first])
        if _reaches(trials[first.number - 1].mean, plan.ceiling):
            return
    if finalists:
        yield from _held_out_runs(plan, out, trials, finalists)


def _held_out_runs(
    plan: Plan, out: Path, trials: list[Trial], finalists: Sequence[Trial]
) -> Iterator[Stage]:
    """Attacks at full length, whose scores are added to the trials."""
    cells = {
        cell_name(attack, f"seed{seed}"): plan.full(attack, seed)
        for seed in plan.held_out
        for attack in [NO_ATTACK, *(trial.attack for trial in finalists)]
    }
    seeds = ", ".join(map(str, plan.held_out))
    # By name, so that a search that is stopped here has already said what it found.
    scores = [t.short if t.longer is None else t.longer for t in finalists]
    named = [f"  {s:.3f} {on_one_line(t.attack)}" for s, t in zip(scores, finalists, strict=True)]
    title = f"the worst {len(finalists)} at full length, held-out seeds {seeds}:"
    yield Stage("\n".join([title, *named]), out / RUNS, cells)
    for trial in finalists:
        found = held_out_scores(plan, out, trial.attack, plan.against)
        trials[trial.number - 1] = trial._replace(held_out=found)


def _untried(trials: Sequence[Trial]) -> list[Trial]:
    """Those that were not run at full length."""
    return [trial for trial in trials if trial.held_out is None]


def _require_some(trials: Sequence[Trial], out: Path) -> None:
    if not trials:
        raise RunError(f"{out}: no attack could be run; the messages above say why")


def _score(plan: Plan, out: Path, attack: Mapping[str, Any], stage: str) -> float | None:
    return score_of(out / RUNS / cell_name(attack, stage), plan.against)


def _so_far(trials: Sequence[Trial]) -> str:
    worst = most_harmful(trials, lambda trial: trial.short, 1)
    return f"; worst so far {worst[0].short:.3f} by {worst[0].attack['kind']}" if worst else ""
