"""The search for the attack that harms a defence most, from Python, and what it found."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secureafl.core.errors import NoRunError, RunError
from secureafl.experiment import Experiment, read_experiment, to_mapping
from secureafl.library.results import (
    RunResult,
    html_picture,
    html_table,
    import_optional,
    import_pandas,
)
from secureafl.library.running import (
    Given,
    Kind,
    as_experiment,
    as_settings,
    refuse_script_classes,
    run_cells,
)
from secureafl.redteam.folder import OUTCOME, TRIALS, WORST
from secureafl.redteam.plan import Against, Plan, fast_settings
from secureafl.redteam.side_by_side import SideBySide
from secureafl.redteam.start import Source, with_start
from secureafl.runs.layout import read_json
from secureafl.runtime.loading import shared_data
from secureafl.settings import name_for_files
from secureafl.sweep.cells import Update
from secureafl.sweep.engines import EngineName, require_engine
from secureafl.sweep.grid import cross
from secureafl.sweep.local import kept_processes

if TYPE_CHECKING:
    import pandas

    from secureafl.presentation.plotting import NotebookFigure

_AHEAD = 32  # runs that wait for their turn, unless told how many are made at a time


def red_team(
    defense: Kind,
    experiment: Given | None = None,
    *,
    malicious: int | float | None = None,
    budget: int = 200,
    against: Against = "error",
    seeds: Iterable[int] = (101, 102, 103),
    search_seed: int = 0,
    blind: bool = False,
    start_from: Iterable[Source] = (),
    fast: bool = False,
    out: Path | str | None = None,
    engine: EngineName = "local",
    workers: int = 0,
    progress: bool = False,
) -> RedTeamResult:
    """Search for the attack that harms a defence most, and score it on seeds never searched on.

    It is the search of `secureafl redteam`. The same call goes on after a stop, and returns a
    finished search at once.

    Args:
        defense: The defence to attack: a name, a table of settings, or the object.
        experiment: What is attacked, as for `run`; without one, the paper's setting.
        malicious: A share or a number of the clients; else the experiment's.
        budget: Attacks to try, each in a short run.
        against: What to make large: the test error, or a backdoor's success rate, "asr".
        seeds: Held-out seeds, for the score only.
        search_seed: Seed of the search.
        blind: Whether to begin at random, not with the attacks as they come.
        start_from: Attacks to try before all others: tables of settings, outcomes of searches
            (`redteam.json`), or folders of them, of which those on the same defence are taken.
        fast: Scaled down, to see how it works.
        out: The folder of the search; without one, below `runs`.
        engine: Where its runs are made: local, ray or slurm.
        workers: Runs at a time; 0: as many as fit.
        progress: Whether to show how far it is.

    >>> secureafl.red_team("kardam", {"clients": 10}, malicious=0.6)
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: malicious = 0.6: give a share up to one half that is ...
    """
    base = _base(defense, experiment, malicious, fast)
    rest = (budget, against, tuple(seeds), search_seed, blind)
    plan = with_start(Plan(base, *rest), start_from)
    folder = Path(out) if out is not None else Path("runs") / search_name(plan, fast)
    refuse_script_classes({"base": base})
    if failures := search_all({folder: plan}, engine, workers, 60.0, not progress):
        raise RunError("; ".join(failures))
    return RedTeamResult(folder)


def search_all(
    plans: Mapping[Path, Plan],
    engine: EngineName,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
) -> list[str]:
    """Carry out searches side by side, each in its folder, with the result it has alone.

    Return why some could not go on. The same call goes on after a stop.
    """
    # Before folders are claimed: who asks again, for another device, would find them in use.
    require_engine(engine, [plan.base.device for plan in plans.values()])
    searches = SideBySide(plans, workers or _AHEAD)

    def go_on(update: Update) -> list[str]:
        searches.tell(update)
        return [] if quiet else searches.begun()

    with kept_processes(), shared_data():
        if not quiet:
            print(*searches.begun(), sep="\n", file=sys.stderr)
        given = (searches.cells, searches.folder, engine, workers, checkpoint_seconds, quiet)
        run_cells(*given, go_on=go_on)
    return searches.failures


def _base(
    defense: Kind, experiment: Given | None, malicious: int | float | None, fast: bool
) -> Experiment:
    """The experiment that is attacked; its settings of the same defence stay."""
    made = as_experiment({} if experiment is None else experiment)
    changes = fast_settings(made.task) if fast else {}
    changes |= {} if malicious is None else {"malicious": malicious}
    (found,) = cross(to_mapping(made), [as_settings(defense)], ["none"], changes).values()
    return found


def search_name(plan: Plan, fast: bool) -> str:
    """What the folder of a search is called, unless it is told."""
    parts = [name_for_files(part) for part in (plan.base.task, plan.base.defense)]
    return "-".join(["redteam", *parts, str(plan.base.malicious), plan.against, *["fast"] * fast])


class RedTeamResult:
    """A finished search, as it is in its folder; also of searches that the command made.

    >>> secureafl.RedTeamResult("no/such/folder")
    Traceback (most recent call last):
    secureafl.core.errors.NoRunError: no/such/folder: no finished search (no redteam.json)...
    """

    path: Path
    outcome: dict[str, Any]  # the content of redteam.json and of trials.json

    def __init__(self, path: Path | str) -> None:
        """Read the folder of a search."""
        self.path = Path(path)
        if not (self.path / OUTCOME).is_file():
            remedy = "the command that began it goes on"
            raise NoRunError(f"{path}: no finished search (no {OUTCOME}); {remedy}")
        self.outcome = {**read_json(self.path / OUTCOME), **read_json(self.path / TRIALS)}

    @property
    def metrics(self) -> dict[str, float]:
        """What the worst attack does, a mean over held-out seeds, and the error without an attack.

        The first one is what the search was to make large; infinite where training diverged.
        """
        worst = self.outcome["worst"]
        own = {self.outcome["metric"]: _number(worst["held_out"]["mean"])}
        also = {"error": _number(worst["error"]["mean"])} if "asr" in own else {}
        clean = _number(self.outcome["without_attack"]["mean"])
        return {**own, **also, "without_attack": clean}

    @property
    def attack(self) -> dict[str, Any]:
        """The worst attack as a table of settings, which `run` and `compare` take."""
        return dict(self.outcome["worst"]["attack"])

    @property
    def experiment(self) -> Experiment:
        """The experiment with the worst attack, on the first held-out seed: `run` it again."""
        return read_experiment(self.path / WORST)

    @property
    def worst(self) -> RunResult:
        """The run of the worst attack on the first held-out seed."""
        return RunResult(self.path / self.outcome["worst"]["run"])

    @functools.cached_property
    def history(self) -> pandas.DataFrame:
        """The attacks that were tried, in their order; scores are NaN for runs not made."""
        return import_pandas().DataFrame(self._rows())

    def plot(self) -> NotebookFigure:
        """Draw the worst score so far over the attacks tried, and that on held-out seeds."""
        import_optional("matplotlib.figure", "plot", "matplotlib")
        from secureafl.presentation.plotting import NotebookFigure, our_style
        from secureafl.report.redteam import draw_curve

        with our_style():
            figure = NotebookFigure(figsize=(7.0, 3.5), layout="constrained")
            draw_curve(figure, self.outcome)
        return figure

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "number": trial["number"],
                "attack": trial["attack"]["kind"],
                "settings": {k: v for k, v in trial["attack"].items() if k != "kind"},
                "short": _number(trial["short"]),
                "longer": _number(trial["longer"]),
                "held_out": _number(trial["held_out"]["mean"]),
            }
            for trial in self.outcome["trials"]
        ]

    def __repr__(self) -> str:
        base, figures = self.outcome["plan"]["base"], self.metrics.items()
        told = ", ".join(f"{name} {value:.3f}" for name, value in figures)
        return (
            f"<RedTeamResult {self.path}: {told}; {base['defense']['kind']}, "
            f"worst of {len(self.outcome['trials'])}: {self.attack['kind']}>"
        )

    def _repr_html_(self) -> str:
        worst = {"defence": self.outcome["plan"]["base"]["defense"]["kind"], **self.attack}
        worst["attack"] = worst.pop("kind")
        return html_table([{**worst, **self.metrics}]) + html_picture(
            self.plot, "worst score over the attacks tried"
        )


def _number(value: float | str | None) -> float:
    """A score; the word `diverged` is infinite, and what was not run is undefined."""
    if value is None:
        return math.nan
    return math.inf if isinstance(value, str) else value
