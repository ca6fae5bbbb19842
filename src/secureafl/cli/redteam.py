"""`secureafl redteam`: search for the attack that harms a defence most."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from secureafl.cli.given import settings_given
from secureafl.cli.stopping import stoppable

if TYPE_CHECKING:
    from secureafl.experiment import Experiment
    from secureafl.redteam.plan import Plan

EngineName = Literal["local", "ray", "slurm"]
EXAMPLE = (
    "Example: secureafl redteam secure_afl_hardened --malicious 0.2 --budget 200, "
    "or: secureafl redteam my_defense:NormBound --fast"
)


def redteam(
    defense: Annotated[
        str, typer.Argument(metavar="DEFENSE", help="Defence to attack, or module:Class.")
    ],
    file: Annotated[
        Path | None,
        typer.Argument(help="Experiment to attack; without one, the paper's setting."),
    ] = None,
    malicious: Annotated[
        float | None,
        typer.Option(help="Share of malicious clients, up to 0.5; else the file's, or 0.2."),
    ] = None,
    budget: Annotated[int, typer.Option(help="Attacks to try, each in a short run.")] = 200,
    against: Annotated[
        Literal["error", "asr"],
        typer.Option(help="What to make large: the test error, or a backdoor's success rate."),
    ] = "error",
    seeds: Annotated[
        str, typer.Option(help="Held-out seeds, for the score only; as 101-103.")
    ] = "101-103",
    search_seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    blind: Annotated[
        bool, typer.Option("--blind", help="Begin at random, not with the attacks as they come.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Scaled down: minutes on two cores, to see how it works.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(help="Arrivals in a run of full length.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to compute.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data set.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the experiment."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Where runs are computed.")] = "local",
    workers: Annotated[
        int, typer.Option(min=0, help="Runs (jobs on a cluster) at a time; 0: as many as fit.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the search; one begun before is gone on with."),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Save a checkpoint of each run this often.")
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")] = False,
) -> None:
    """Search for the attack that harms a defence most, and score it on seeds never searched on."""
    from secureafl.redteam.plan import Plan
    from secureafl.sweep.grid import parse_seeds

    plain = {"rounds": rounds, "clients": clients, "malicious": malicious, "device": device}
    base = _base(defense, file, settings_given(plain, data_dir, set_), fast)
    plan = Plan(base, budget, against, tuple(parse_seeds(seeds)), search_seed, blind)
    folder = out or Path("runs") / "-".join(_name_parts(plan, fast))
    with stoppable("the same command goes on"):
        _search(plan, folder, engine, workers, checkpoint_seconds, quiet)
    _write_page(folder, quiet)


def _base(defense: str, file: Path | None, changes: dict[str, Any], fast: bool) -> Experiment:
    """The experiment that is attacked; a file's settings of the same defence stay."""
    from secureafl.experiment import read_settings
    from secureafl.redteam.plan import fast_settings
    from secureafl.sweep.grid import cross

    values = read_settings(file) if file else {}
    (base,) = cross(values, [defense], ["none"], changes).values()
    if fast:
        changes = fast_settings(base.task) | changes
        (base,) = cross(values, [defense], ["none"], changes).values()
    return base


def _name_parts(plan: Plan, fast: bool) -> list[str]:
    from secureafl.settings import short_name

    base = plan.base
    parts = ["redteam", short_name(base.task), short_name(base.defense), str(base.malicious)]
    return [*parts, plan.against, *["fast"] * fast]


def _search(
    plan: Plan,
    folder: Path,
    engine: EngineName,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
) -> None:
    from secureafl.cli.sweeping import run_with_progress
    from secureafl.redteam.folder import RUNS
    from secureafl.redteam.search import stages

    for stage in stages(plan, folder):
        if not quiet:
            print(stage.title, file=sys.stderr)
        run_with_progress(stage.cells, folder / RUNS, engine, workers, checkpoint_seconds, quiet)


def _write_page(folder: Path, quiet: bool) -> None:
    from secureafl.redteam.folder import OUTCOME, WORST
    from secureafl.report.redteam import headline, read_outcome, write_redteam

    outcome = read_outcome(folder / OUTCOME)
    page = write_redteam(outcome, folder, folder / "report")
    if not quiet:
        print(headline(outcome))
        print(f"again: secureafl run {folder / WORST}\npage:  {page}")
