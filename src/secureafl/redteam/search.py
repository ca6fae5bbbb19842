"""The search: many attacks in short runs, the best of them longer, the last few on other seeds.

`stages` yields the runs of each stage and expects them to be done when it is asked for the next;
what runs them is not its business. All that it learns is in the run folders. So a search that was
killed is started again from the beginning, finds most runs done, proposes the same attacks, and
ends with the same result.

Several searches advance together (`all_stages`): a stage ends when its slowest run does, so one
search alone leaves a GPU idle for much of its time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment, to_mapping
from secureafl.redteam.folder import RUNS, cell_name, claim, score_of
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.outcome import Trial, held_out_scores, most_harmful, write_outcome
from secureafl.redteam.plan import LOST, NO_ATTACK, Plan
from secureafl.redteam.space import find_space
from secureafl.runs.layout import RESULT
from secureafl.toml import on_one_line


class Stage(NamedTuple):
    """Runs that do not depend on each other."""

    title: str
    folder: Path  # in which each has a folder of its name
    cells: dict[str, Experiment]


def all_stages(plans: Mapping[Path, Plan]) -> Iterator[Stage]:
    """Yield stages of searches that advance together: each is one stage of every search.

    A search that cannot go on does not stop the others; it is an error when they have ended.
    """
    searches = {out: stages(plan, out) for out, plan in plans.items()}
    failures: list[str] = []
    current = {out: next(one) for out, one in searches.items()}  # an error here: nothing has run
    while current:
        stage, twins = _merged(current, with_names=len(plans) > 1)
        yield stage
        _copy(twins)
        found = {out: _advance(one, failures) for out, one in searches.items()}
        current = {out: stage for out, stage in found.items() if stage}
    if failures:
        raise RunError("; ".join(failures))


def _advance(search: Iterator[Stage], failures: list[str]) -> Stage | None:
    """The next stage of a search; None if it has ended or cannot go on."""
    try:
        return next(search, None)
    except RunError as error:
        failures.append(str(error))
        return None


def _merged(
    current: Mapping[Path, Stage], with_names: bool
) -> tuple[Stage, list[tuple[Path, Path]]]:
    """One stage of the stages of several searches; their runs stay where they are.

    Of runs that are the same, as those without an attack, one is made; the others, which come with
    it in pairs, are to be copies.
    """
    titles = [f"{out.name}: {s.title}" if with_names else s.title for out, s in current.items()]
    cells = {
        stage.folder.absolute() / name: cell
        for stage in current.values()
        for name, cell in stage.cells.items()
    }
    folder = Path(os.path.commonpath([stage.folder.absolute() for stage in current.values()]))
    # Attacks that carry out the defence take longest; begun last, everybody would wait for them.
    order = sorted(cells, key=lambda run: cells[run].attack.knows != "defense")
    first: dict[str, Path] = {}
    twins = [(first.setdefault(repr(to_mapping(cells[run])), run), run) for run in order]
    named = {run.relative_to(folder).as_posix(): cells[run] for run in first.values()}
    return Stage("\n".join(titles), folder, named), [pair for pair in twins if len({*pair}) > 1]


def _copy(twins: Sequence[tuple[Path, Path]]) -> None:
    """Copy finished runs to where the same run is wanted, at once or not at all."""
    for made, wanted in twins:
        if (made / RESULT).is_file() and not (wanted / RESULT).is_file():
            unfinished = wanted.with_name(f".{wanted.name}")
            for leftover in (unfinished, wanted):
                shutil.rmtree(leftover, ignore_errors=True)
            shutil.copytree(made, unfinished)
            unfinished.rename(wanted)


def stages(plan: Plan, out: Path) -> Iterator[Stage]:
    """Yield the stages of a search; when the last one has run, the outcome is written."""
    space = find_space(plan.base.task, plan.against == "asr")
    optimiser = Optimiser(space, plan.search_seed, plan.known, plan.start)
    claim(plan, space, out)
    trials = yield from _short_runs(plan, out, optimiser)
    promoted = yield from _longer_runs(plan, out, trials)
    finalists = yield from _full_runs(plan, out, promoted)
    later = {trial.number: trial for trial in [*promoted, *finalists]}
    write_outcome(plan, space, out, [later.get(trial.number, trial) for trial in trials])


def _short_runs(plan: Plan, out: Path, optimiser: Optimiser) -> Generator[Stage, None, list[Trial]]:
    """Every attack on the search's seed, batch by batch; returns them all.

    It ends early when there are enough attacks that leave nothing to be worse. A run without an
    attack is among the first, to tell whether short runs learn anything.
    """
    trials: list[Trial] = []
    ceiling, none = plan.ceiling, {cell_name(NO_ATTACK, "short"): plan.short(NO_ATTACK)}
    while len(trials) < plan.budget and not _enough(plan, out, trials, ceiling):
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
    return trials


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


def _longer_runs(
    plan: Plan, out: Path, trials: Sequence[Trial]
) -> Generator[Stage, None, list[Trial]]:
    """The worst of short runs on another seed; returns them with their new scores.

    Where enough of them leave nothing to be worse, there is nothing to choose: none is run.
    """
    ceiling = plan.ceiling
    if _enough(plan, out, trials, ceiling):
        return [trial for trial in trials if _reaches(trial.short, ceiling)]
    promoted = most_harmful(trials, lambda trial: trial.short, plan.promoted(len(trials)))
    _require_some(promoted, out)
    title = f"longer runs of the worst {len(promoted)}{_so_far(promoted)}"
    cells = {cell_name(t.attack, "longer"): plan.longer(t.attack) for t in promoted}
    yield Stage(title, out / RUNS, cells)
    scores = [_score(plan, out, trial.attack, "longer") for trial in promoted]
    found = zip(promoted, scores, strict=True)
    return [trial._replace(promoted=True, longer=score) for trial, score in found]


def _full_runs(
    plan: Plan, out: Path, promoted: Sequence[Trial]
) -> Generator[Stage, None, list[Trial]]:
    """The worst of longer runs, and no attack, on held-out seeds; returns them with scores.

    One that leaves nothing to be worse, there too, has no rivals.
    """
    finalists = most_harmful(promoted, _promise, plan.finalists)
    _require_some(finalists, out)
    ceiling = plan.ceiling
    alone = 1 if _reaches(_promise(finalists[0]), ceiling) else len(finalists)
    first = yield from _held_out_runs(plan, out, finalists[:alone])
    rest = [] if _reaches(first[0].mean, ceiling) else finalists[alone:]
    return first + ((yield from _held_out_runs(plan, out, rest)) if rest else [])


def _held_out_runs(
    plan: Plan, out: Path, finalists: Sequence[Trial]
) -> Generator[Stage, None, list[Trial]]:
    cells = {
        cell_name(attack, f"seed{seed}"): plan.full(attack, seed)
        for seed in plan.held_out
        for attack in [NO_ATTACK, *(trial.attack for trial in finalists)]
    }
    seeds = ", ".join(map(str, plan.held_out))
    # By name, so that a search that is stopped here has already said what it found.
    named = [f"  {_promise(trial):.3f} {on_one_line(trial.attack)}" for trial in finalists]
    title = f"the worst {len(finalists)} at full length, held-out seeds {seeds}:"
    yield Stage("\n".join([title, *named]), out / RUNS, cells)
    return [
        t._replace(held_out=held_out_scores(plan, out, t.attack, plan.against)) for t in finalists
    ]


def _promise(trial: Trial) -> float | None:
    """The score that speaks for an attack: of its longer run, if it was to have one."""
    return trial.longer if trial.promoted else trial.short


def _require_some(trials: Sequence[Trial], out: Path) -> None:
    if not trials:
        raise RunError(f"{out}: no attack could be run; the messages above say why")


def _score(plan: Plan, out: Path, attack: Mapping[str, Any], stage: str) -> float | None:
    return score_of(out / RUNS / cell_name(attack, stage), plan.against)


def _so_far(trials: Sequence[Trial]) -> str:
    worst = most_harmful(trials, lambda trial: trial.short, 1)
    return f"; worst so far {worst[0].short:.3f} by {worst[0].attack['kind']}" if worst else ""
