"""The search: many attacks in short runs, the best of them longer, the last few on other seeds.

`stages` yields the runs of each stage and expects them to be done when it is asked for the next;
what runs them is not its business. All that it learns is in the run folders. So a search that was
killed is started again from the beginning, finds most runs done, proposes the same attacks, and
ends with the same result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment
from secureafl.redteam.folder import RUNS, cell_name, claim
from secureafl.redteam.optimiser import Optimiser
from secureafl.redteam.outcome import Trial, most_harmful, write_outcome
from secureafl.redteam.plan import LOST, NO_ATTACK, Plan
from secureafl.redteam.scores import Scores
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
    claim(plan, space, out)
    search = _Search(plan, out, Optimiser(space, plan.search_seed, plan.known, plan.start))
    yield from search.stages()
    write_outcome(plan, space, out, search.trials)


class _Search:
    """A search that goes on from stage to stage."""

    def __init__(self, plan: Plan, out: Path, optimiser: Optimiser) -> None:
        self.trials: list[Trial] = []
        self._plan, self._out, self._optimiser = plan, out, optimiser
        self._scores, self._ceiling = Scores(plan, out), plan.ceiling

    def stages(self) -> Iterator[Stage]:
        yield from self._short_runs()
        if not (yield from self._lost()):
            yield from self._short_runs(to_the_end=True)
            yield from self._longer_runs()
            yield from self._full_runs()

    def _short_runs(self, to_the_end: bool = False) -> Iterator[Stage]:
        """Every attack on the search's seed, batch by batch, added to the trials.

        It ends early when there are enough attacks that leave nothing to be worse. A run without an
        attack is among the first, to tell whether short runs learn anything.
        """
        plan, trials = self._plan, self.trials
        none = {cell_name(NO_ATTACK, "short"): plan.short(NO_ATTACK)}
        while len(trials) < plan.budget and (to_the_end or not self._enough()):
            attacks = self._optimiser.ask(min(plan.batch, plan.budget - len(trials)))
            first, last = len(trials) + 1, len(trials) + len(attacks)
            title = f"short runs, attacks {first} to {last} of {plan.budget}{_so_far(trials)}"
            cells = {cell_name(attack, "short"): plan.short(attack) for attack in attacks}
            yield self._stage(title, cells | (none if not trials else {}))
            scores = [self._scores.short(attack) for attack in attacks]
            self._optimiser.tell(scores)
            found = zip(attacks, scores, strict=True)
            trials += [Trial(number, *one) for number, one in enumerate(found, first)]
            if self._scores.without_attack is None:  # this defence may not run at all
                self._require_some([trial for trial in trials if trial.short is not None])

    def _enough(self) -> bool:
        """Whether enough attacks do all the harm there is.

        That means nothing of a rule that learns nothing in a short run: it makes every attack look
        like that.
        """
        lost = [trial for trial in self.trials if self._reaches(trial.short)]
        return len(lost) >= LOST and self._scores.short_runs_learn

    def _reaches(self, score: float | None) -> bool:
        return score is not None and score >= self._ceiling

    def _lost(self) -> Generator[Stage, None, bool]:
        """Whether nothing can be worse than the worst attack, in whole runs on held-out seeds too.

        It is run so where short runs say that; else there is something left to search for.
        """
        if not self._enough():
            return False
        (worst,) = most_harmful(self.trials, lambda trial: trial.short, 1)
        yield from self._held_out_runs([worst])
        return self._reaches(self.trials[worst.number - 1].mean)

    def _longer_runs(self) -> Iterator[Stage]:
        """The worst of short runs on another seed, whose scores are added to the trials."""
        count = self._plan.promoted(len(self.trials))
        promoted = most_harmful(self._untried(), lambda trial: trial.short, count)
        if not promoted:
            return
        title = f"longer runs of the worst {len(promoted)}{_so_far(promoted)}"
        runs = {cell_name(t.attack, "longer"): self._plan.longer(t.attack) for t in promoted}
        yield self._stage(title, runs)
        for trial in promoted:
            score = self._scores.longer(trial.attack)
            self.trials[trial.number - 1] = trial._replace(longer=score)

    def _full_runs(self) -> Iterator[Stage]:
        """The worst of longer runs, and no attack, on held-out seeds.

        One that leaves nothing to be worse, there too, has no rivals.
        """
        count = self._plan.finalists
        finalists = most_harmful(self._untried(), lambda trial: trial.longer, count)
        self._require_some([*finalists, *self._tried()])
        if finalists and self._reaches(finalists[0].longer):
            first = finalists.pop(0)
            yield from self._held_out_runs([first])
            if self._reaches(self.trials[first.number - 1].mean):
                return
        if finalists:
            yield from self._held_out_runs(finalists)

    def _held_out_runs(self, finalists: Sequence[Trial]) -> Iterator[Stage]:
        """Attacks at full length, whose scores are added to the trials."""
        cells = {
            cell_name(attack, f"seed{seed}"): self._plan.full(attack, seed)
            for seed in self._plan.held_out
            for attack in [NO_ATTACK, *(trial.attack for trial in finalists)]
        }
        seeds = ", ".join(map(str, self._plan.held_out))
        # By name, so that a search that is stopped here has already said what it found.
        scores = [t.short if t.longer is None else t.longer for t in finalists]
        pairs = zip(scores, finalists, strict=True)
        named = [f"  {score:.3f} {on_one_line(trial.attack)}" for score, trial in pairs]
        title = f"the worst {len(finalists)} at full length, held-out seeds {seeds}:"
        yield self._stage("\n".join([title, *named]), cells)
        for trial in finalists:
            found = self._scores.held_out(trial.attack)
            self.trials[trial.number - 1] = trial._replace(held_out=found)

    def _stage(self, title: str, cells: dict[str, Experiment]) -> Stage:
        return Stage(title, self._out / RUNS, cells)

    def _untried(self) -> list[Trial]:
        """Those that were not run at full length."""
        return [trial for trial in self.trials if trial.held_out is None]

    def _tried(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.mean is not None]

    def _require_some(self, trials: Sequence[Trial]) -> None:
        if not trials:
            raise RunError(f"{self._out}: no attack could be run; the messages above say why")


def _so_far(trials: Sequence[Trial]) -> str:
    worst = most_harmful(trials, lambda trial: trial.short, 1)
    return f"; worst so far {worst[0].short:.3f} by {worst[0].attack['kind']}" if worst else ""
