"""`secureafl reproduce`: the cells of a table or figure of the paper, then its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secureafl.cli.given import words_of
from secureafl.cli.options import DEVICE, CheckpointSeconds, Engine, EngineName, Workers
from secureafl.cli.stopping import stoppable
from secureafl.core.errors import ConfigError, NoRunError

if TYPE_CHECKING:
    from secureafl.experiment import Experiment
    from secureafl.reproduce.plan import Request

    Tables = Mapping[Path, Mapping[str, Experiment]]  # cells by name, in a folder each

EXAMPLE = (
    "Example: secureafl reproduce main --fast, or: secureafl reproduce variants --seeds 0-2, "
    "or several side by side: secureafl reproduce main,stated --task cifar10,cifar100"
)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="main, stated, asyncdefender, alpha, variants, estimation-error, runtime, "
            "malicious-fraction, delay, non-iid or clients. Several with commas between: "
            "side by side."
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            metavar="TASK",
            help="Task, for main, stated and asyncdefender; several with commas between.",
        ),
    ] = "fashion_mnist",
    seeds: Annotated[
        str,
        typer.Option(
            metavar="SEEDS", help="Seeds, as 0-4 or 0,1,2; default: 0-4, or 0 with --fast."
        ),
    ] = "",
    rounds: Annotated[
        int, typer.Option(metavar="ROUNDS", min=0, help="Arrivals; 0: as many as the paper.")
    ] = 0,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="DEFENSES", help="Defences (or other rows), with commas between; default: all."
        ),
    ] = None,
    attacks: Annotated[
        str | None, typer.Option(metavar="ATTACKS", help="Attacks, with commas between.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Scaled down: minutes on two cores; the page says so.")
    ] = False,
    device: Annotated[str, DEVICE] = "auto",
    data_dir: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the data set.")] = "",
    engine: Engine = "local",
    workers: Workers = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for runs and page, or for several of these; one begun before is gone on "
            "with.",
        ),
    ] = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Run nothing; make the page of what is there.")
    ] = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run a table or figure of the paper and put its page beside the paper's figures."""
    from secureafl.reproduce.artefacts import ESTIMATION, RUNTIME
    from secureafl.reproduce.plan import Request, grid_for

    chosen = (tuple(words_of(methods, "--methods")), tuple(words_of(attacks, "--attacks")))
    requests = [
        Request(one, kind, seeds, rounds, *chosen, fast, device, data_dir)
        for kind in words_of(task, "--task")
        for one in words_of(name, "NAME")
    ]
    folders = _in_folders(requests, out)
    measured = {request.name for request in requests} & {RUNTIME, ESTIMATION}
    if measured and len(requests) > 1:
        raise ConfigError(f"{min(measured)} measures: ask for it alone")
    if measured and (engine != "local" or workers):
        raise ConfigError(f"{name} measures, here: leave out --engine and --workers")
    if name == RUNTIME and page_only:
        raise ConfigError(f"{name} keeps no runs: leave out --page-only")
    if name == RUNTIME:
        from secureafl.cli.bench import bench

        bench(device=device, out=next(iter(folders)), quick=fast)
        return
    tables = {folder: grid_for(request).cells() for folder, request in folders.items()}
    if page_only:
        _require_runs(tables)
    run = _run_measured if measured else _run
    with stoppable("the same command goes on"):
        finished = page_only or run(tables, engine, workers, checkpoint_seconds, quiet)
    for folder, request in folders.items():
        _write_page(request, folder, quiet)
    if not finished:
        raise typer.Exit(1)


def _in_folders(requests: Sequence[Request], out: Path | None) -> dict[Path, Request]:
    """The folder of each table or figure: `out` itself if there is one, else one in it."""
    if out and len(requests) == 1:
        return {out: requests[0]}
    parts = [["reproduce", r.name, r.task, *["fast"] * r.fast] for r in requests]
    folders = [(out or Path("runs")) / "-".join(words) for words in parts]
    return dict(zip(folders, requests, strict=True))


def _require_runs(tables: Tables) -> None:
    """Raise if there is nothing at all to make one of the pages of."""
    from secureafl.runs.layout import is_run

    for folder, cells in tables.items():
        if not any(is_run(folder / name) for name in cells):
            told = "holds none of the runs asked for" if folder.is_dir() else "no such folder"
            raise NoRunError(f"{folder}: {told}; without --page-only the command makes the runs")


def _run(
    tables: Tables, engine: EngineName, workers: int, checkpoint_seconds: float, quiet: bool
) -> bool:
    """Run the cells that have no result yet; return whether all have one now."""
    from secureafl.cli.sweeping import run_with_progress

    done = run_with_progress(tables, engine, workers, checkpoint_seconds, quiet)
    return all(len(done[folder]) == len(cells) for folder, cells in tables.items())


def _run_measured(
    tables: Tables, engine: EngineName, _workers: int, checkpoint_seconds: float, quiet: bool
) -> bool:
    """Run one cell after the other: measuring beside a run is not part of any engine."""
    from secureafl.presentation.progress import make_display
    from secureafl.reproduce.estimation import run_measured
    from secureafl.runs.layout import RESULT
    from secureafl.sweep.cells import Update
    from secureafl.sweep.engines import require_runnable
    from secureafl.sweep.tally import RunProgress

    ((folder, cells),) = tables.items()
    require_runnable(engine, cells, folder)
    with make_display({name: cell.rounds for name, cell in cells.items()}, quiet) as display:
        for name, cell in cells.items():
            progress = RunProgress()
            if not (folder / name / RESULT).is_file():
                for event in run_measured(cell, folder / name, checkpoint_seconds):
                    progress = progress.after(event)
                    if progress.round % 20 == 0:
                        display.tell(Update(name, progress, "running"))
            display.tell(Update(name, progress, "finished"))
    return True


def _write_page(request: Request, folder: Path, quiet: bool) -> None:
    from secureafl.report.artefact import write_artefact
    from secureafl.report.summary import summaries
    from secureafl.reproduce.artefacts import ESTIMATION
    from secureafl.reproduce.estimation import estimation_brief
    from secureafl.reproduce.plan import brief_for

    make = estimation_brief if request.name == ESTIMATION else brief_for
    brief = make(request, folder)
    page = write_artefact(brief, folder / "report")
    if not quiet:
        print(*brief.warnings, *summaries(brief.sheets, brief.ours), f"page: {page}", sep="\n")
