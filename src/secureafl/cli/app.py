"""The command `secureafl`."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from secureafl import __version__
from secureafl.cli import data as data_sets
from secureafl.cli import deploy, starting
from secureafl.cli.bench import EXAMPLE, bench
from secureafl.cli.check import EXAMPLE as CHECK_EXAMPLE
from secureafl.cli.check import check
from secureafl.cli.dashboard import EXAMPLE as DASHBOARD_EXAMPLE
from secureafl.cli.dashboard import dashboard
from secureafl.cli.given import remedy_for, settings_given, words_of
from secureafl.cli.listed import EXAMPLE as LIST_EXAMPLE
from secureafl.cli.listed import list_
from secureafl.cli.options import DEVICE, CheckpointSeconds, Engine, Workers
from secureafl.cli.redteam import EXAMPLE as REDTEAM_EXAMPLE
from secureafl.cli.redteam import redteam
from secureafl.cli.reproduce import EXAMPLE as REPRODUCE_EXAMPLE
from secureafl.cli.reproduce import reproduce
from secureafl.cli.results import EXAMPLE as RESULTS_EXAMPLE
from secureafl.cli.results import results
from secureafl.cli.stopping import stoppable
from secureafl.cli.table import EXAMPLE as TABLE_EXAMPLE
from secureafl.cli.table import table
from secureafl.cli.theory import EXAMPLE as THEORY_EXAMPLE
from secureafl.cli.theory import theory
from secureafl.core.errors import ConfigError, NoRunError, SecureAflError
from secureafl.library.shipped import find_file

app = typer.Typer(
    help="Asynchronous federated learning that stands poisoning.",
    epilog="Start with: secureafl run --rounds 300 --clients 10 --attack gaussian",
    no_args_is_help=True,
    suggest_commands=False,  # click does so already
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"secureafl {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="The version."),
    ] = False,
) -> None:
    pass  # `app` has the help


class Kernels(StrEnum):
    """Which version of the hot operations runs."""

    auto = "auto"
    reference = "reference"
    cpu = "cpu"
    gpu = "gpu"


class Tracking(StrEnum):
    """Where figures go beside the run folder."""

    mlflow = "mlflow"
    tensorboard = "tensorboard"
    wandb = "wandb"


File = Annotated[
    Path | None,
    typer.Argument(help="Experiment file, or one that ships: quick. None: the paper's setting."),
]
Defense = Annotated[
    str | None, typer.Option(metavar="DEFENSE", help="Defence, as in 'secureafl list defenses'.")
]
Attack = Annotated[
    str | None, typer.Option(metavar="ATTACK", help="Attack, as in 'secureafl list attacks'.")
]
Task = Annotated[
    str | None, typer.Option(metavar="TASK", help="Task, as in 'secureafl list tasks'.")
]
Rounds = Annotated[int | None, typer.Option(metavar="ROUNDS", help="Arrivals to simulate.")]
Clients = Annotated[int | None, typer.Option(metavar="NUMBER", help="Number of clients.")]
Seed = Annotated[
    int | None, typer.Option(metavar="SEED", help="Everything random follows from it.")
]
Where = Annotated[str | None, DEVICE]
WithKernels = Annotated[
    Kernels | None,
    typer.Option(help="Force plain torch, or what is compiled for a CPU or GPU."),
]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Folder of the data set; 'embedded': the slice."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting: --set defense.alpha=0.7"),
]
Track = Annotated[
    list[Tracking] | None,
    typer.Option(help="Log figures there too, see docs/library.md; may be given more than once."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


@app.command(
    epilog="Example: secureafl run experiments/quick.toml --attack sign_flip "
    "--set attack.factor=10 --set defense.alpha=0.7 --out runs/first"
)
def run(
    file: File = None,
    defense: Defense = None,
    attack: Attack = None,
    task: Task = None,
    rounds: Rounds = None,
    clients: Clients = None,
    seed: Seed = None,
    device: Where = None,
    kernels: WithKernels = None,
    data_dir: DataDir = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Run folder to make.")] = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run one experiment and leave everything in a run folder."""
    from secureafl.experiment import from_mapping, with_settings
    from secureafl.library.running import free_folder, run_name
    from secureafl.simulation.run import start_run

    plain = {"task": task, "defense": defense, "attack": attack}
    plain |= {"rounds": rounds, "clients": clients, "seed": seed}
    plain |= {"device": device, "kernels": kernels}
    changes = settings_given(plain, data_dir, set_)
    experiment = from_mapping(with_settings(_read(file), changes))
    path = out or free_folder(Path("runs"), run_name(experiment))
    callbacks = _trackers(track)  # first: a library may be missing
    _follow(start_run(experiment, path, checkpoint_seconds), quiet, as_json, callbacks)


@app.command(epilog="Example: secureafl resume runs/first")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    checkpoint_seconds: CheckpointSeconds = 60.0,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same bits."""
    from secureafl.runs.layout import RESULT

    if (folder / RESULT).is_file():
        if not quiet:
            print(f"{folder}: finished already", file=sys.stderr)
        _say_result(folder, quiet, as_json)
        return
    from secureafl.simulation.run import resume_run

    callbacks = _trackers(track)
    _follow(resume_run(folder, checkpoint_seconds), quiet, as_json, callbacks)


@app.command(
    epilog="Example: secureafl compare experiments/quick.toml "
    "--defenses async_sgd,trust_clipping --attacks none,gaussian,sign_flip"
)
def compare(
    file: File = None,
    defenses: Annotated[
        str | None, typer.Option(metavar="DEFENSES", help="Defences, with commas between.")
    ] = None,
    attacks: Annotated[
        str | None, typer.Option(metavar="ATTACKS", help="Attacks, with commas between.")
    ] = None,
    rounds: Rounds = None,
    clients: Clients = None,
    seed: Seed = None,
    device: Where = None,
    kernels: WithKernels = None,
    data_dir: DataDir = None,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for the runs; one begun before is gone on with."
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=0, help="Runs at a time; 0: one per core, or 32 on a GPU."
        ),
    ] = 0,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment with several defences and attacks side by side, and make a report."""
    from secureafl.cli.sweeping import report_comparison, run_with_progress
    from secureafl.library.running import free_folder
    from secureafl.sweep.grid import cross

    plain = {"rounds": rounds, "clients": clients, "seed": seed}
    plain |= {"device": device, "kernels": kernels}
    changes = settings_given(plain, data_dir, set_)
    chosen = words_of(defenses, "--defenses"), words_of(attacks, "--attacks")
    cells = cross(_read(file), *chosen, changes)
    name = f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = out or free_folder(Path("runs"), name)
    with stoppable(f"the same command with --out {folder} goes on"):
        given = ("local", workers, checkpoint_seconds, quiet, _trackers(track))
        finished = run_with_progress({folder: cells}, *given)[folder]
    report_comparison(finished, folder, quiet)
    if len(finished) < len(cells):
        raise typer.Exit(1)


@app.command(
    epilog="Example: secureafl sweep examples/small_grid.toml --seeds 0-4 --out runs/small"
)
def sweep(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="GRID...", help="Grid files, see docs/sweeps.md; side by side."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the runs, or for those of several grids; default: runs/ and the "
            "grid's name.",
        ),
    ] = None,
    engine: Engine = "local",
    workers: Workers = 0,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Seeds, as 0-4 or 0,1,2.")] = "",
    rounds: Rounds = None,
    device: Where = None,
    data_dir: DataDir = None,
    set_: Set = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Run every cell of grids that has no result yet; the same command goes on after a kill."""
    from secureafl.cli.sweeping import grid_folders, print_table, run_with_progress
    from secureafl.sweep.grid import parse_seeds, read_grid

    changes = settings_given({"rounds": rounds, "device": device}, data_dir, set_)
    tables = {}
    for folder, file in grid_folders(files, out).items():
        grid = read_grid(find_file(file))
        grid = grid.with_seeds(parse_seeds(seeds)) if seeds else grid
        tables[folder] = grid.cells(changes)
    with stoppable("the same command goes on"):
        given = (engine, workers, checkpoint_seconds, quiet, _trackers(track))
        finished = run_with_progress(tables, *given)
    for folder, names in finished.items():
        if names and not quiet:
            print_table(names, folder)
            print(f"run folders: {folder}")
    if any(len(finished[folder]) < len(cells) for folder, cells in tables.items()):
        raise typer.Exit(1)


@app.command(epilog="Example: secureafl report runs/first runs/second --out report")
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for the page; default: RUN/report."),
    ] = None,
) -> None:
    """Make one self-contained HTML page, its figures and its tables, of runs finished or not."""
    from secureafl.cli.screen import runs_in
    from secureafl.report.page import write_report

    print(write_report(runs_in(folders), out or folders[0] / "report"))


app.command(epilog=EXAMPLE)(bench)
app.command(epilog=CHECK_EXAMPLE)(check)
app.command(epilog=DASHBOARD_EXAMPLE)(dashboard)
app.command(epilog=data_sets.EXAMPLE)(data_sets.data)
app.command(epilog=starting.EXPORT_EXAMPLE)(starting.export)
app.command(epilog=starting.INIT_EXAMPLE)(starting.init)
app.command("list", epilog=LIST_EXAMPLE)(list_)
app.command(epilog=REDTEAM_EXAMPLE)(redteam)
app.command(epilog=REPRODUCE_EXAMPLE)(reproduce)
app.command(epilog=RESULTS_EXAMPLE)(results)
app.command(epilog=TABLE_EXAMPLE)(table)
app.command(epilog=THEORY_EXAMPLE)(theory)
for command, example in deploy.COMMANDS:
    app.command(epilog=example)(command)
app.add_typer(deploy.keys, name="keys", no_args_is_help=True)


def _read(file: Path | None) -> dict[str, Any]:
    from secureafl.experiment import read_settings

    return read_settings(find_file(file)) if file else {}


def _trackers(names: list[Tracking] | None) -> list[Any]:
    from secureafl.tracking import TRACKERS

    return [TRACKERS[name]() for name in names or ()]


def _follow(recording: Any, quiet: bool, as_json: bool, callbacks: list[Any]) -> None:
    """Show a run's progress to its end, or stop it cleanly when asked to."""
    from secureafl.cli.screen import clock, print_notes
    from secureafl.library.running import follow

    path = recording.folder.path
    if not quiet:
        print_notes([recording.simulation.experiment])
    if not follow(recording, quiet, callbacks):
        print(f"stopped; go on with: secureafl resume {path}", file=sys.stderr)
        raise typer.Exit(130)
    if not quiet:
        rounds = recording.simulation.experiment.rounds
        print(f"finished: {rounds:,} rounds in {clock(recording.seconds)}", file=sys.stderr)
    _say_result(path, quiet, as_json)


def _say_result(path: Path, quiet: bool, as_json: bool) -> None:
    from secureafl.cli.screen import print_comparison
    from secureafl.library.notes import note_after
    from secureafl.runs.layout import RESULT, read_json

    result = read_json(path / RESULT)
    if as_json:
        print(json.dumps({**result, "folder": str(path)}))
    elif not quiet:
        print_comparison([path])
        if note := note_after(result):
            print(f"note: {note}", file=sys.stderr)
        print(f"run folder: {path}\nreport:     secureafl report {path}")


def _takes_settings(error: click.UsageError) -> bool:
    """Whether the command it is about has `--set`."""
    return bool(error.ctx) and any("--set" in option.opts for option in error.ctx.command.params)


def main() -> None:
    """Entry point: errors of ours are one line, not a traceback.

    Exit codes: 0 done, 1 failed, 2 something was given that is wrong, 130 stopped.
    """
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "secureafl"
        words = error.format_message().rstrip(".").split()
        if isinstance(error, click.NoSuchOption) and _takes_settings(error):
            words[-1] += remedy_for(error.option_name)
        elif "extra" in words and "--set" in sys.argv and _takes_settings(error):
            words[-1] += "; give settings as --set KEY=VALUE"
        print("error:", *words, f"(see '{command} --help')", file=sys.stderr)
        sys.exit(2)
    except SecureAflError as error:
        print("error:", *str(error).split(), file=sys.stderr)  # one line, whatever it quotes
        sys.exit(2 if isinstance(error, ConfigError | NoRunError) else 1)
    except BrokenPipeError:
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
