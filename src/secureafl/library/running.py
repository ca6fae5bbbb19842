"""Experiments from Python: one, several side by side, or every cell of a grid."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError, RunError, require
from secureafl.core.setting_types import fitted, whole_number
from secureafl.experiment import (
    PLUG_INS,
    TABLES,
    Experiment,
    from_mapping,
    read_experiment,
    read_settings,
    to_mapping,
)
from secureafl.library.notes import note_after, notes_before
from secureafl.library.results import RunResult, RunResults
from secureafl.library.shipped import find_file
from secureafl.presentation.progress import make_display
from secureafl.runs.layout import RESULT, read_json
from secureafl.runtime.records import require_same
from secureafl.settings import name_for_files, plug_in_settings
from secureafl.simulation.run import Recording, open_run
from secureafl.sweep.cells import Update
from secureafl.sweep.engines import EngineName, find_engine, one_thread, require_runnable, run_sweep
from secureafl.sweep.grid import Grid, read_grid
from secureafl.sweep.local import until_stopped
from secureafl.sweep.tally import RunProgress
from secureafl.tracking.callback import Callback
from secureafl.tracking.following import Following, require_callbacks

_TELL_SECONDS = 0.1
_MANY = "give 0 (as many as fit) or a number of runs at a time"
_RUNS = Path("runs")

Given = Experiment | Mapping[str, Any] | Path | str
Kind = Any  # of a plug-in: its name, a table of settings with a kind, or the object itself


def run(
    experiment: Given,
    out: Path | str | None = None,
    progress: bool = False,
    checkpoint_seconds: float = 60.0,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Run one experiment, and return what came out.

    Everything is left in the run folder `out`; without one, in a new folder below `runs`. A run
    that was begun there before, of the same experiment, is gone on with; one that has finished is
    not run again.

    Args:
        experiment: An `Experiment`, a mapping of settings, or the path of a TOML file; `quick`
            names one that ships.
        out: The run folder.
        progress: Whether to show how far it is.
        checkpoint_seconds: The time between checkpoints.
        callbacks: Told what happens in it, such as `secureafl.tracking.TensorBoard()`.

    >>> import tempfile
    >>> task, once = {"data_dir": "embedded"}, {"every": 4, "late": 1}
    >>> settings = {"rounds": 4, "clients": 2, "task": task, "evaluation": once}
    >>> result = secureafl.run(settings, out=tempfile.mkdtemp() + "/run")
    >>> [*result.metrics], result.summary["rounds"]
    (['ter'], 4)
    """
    made = as_experiment(experiment)
    checkpoint_seconds = fitted(float, checkpoint_seconds, "checkpoint_seconds")
    path = Path(out) if out is not None else free_folder(_RUNS, run_name(made))
    run_into(made, path, progress, checkpoint_seconds, callbacks)
    return RunResult(path)


def compare(
    experiment: Given,
    defenses: Sequence[Kind] = (),
    attacks: Sequence[Kind] = (),
    seeds: Iterable[int] = (),
    out: Path | str | None = None,
    workers: int = 0,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RunResults:
    """Run an experiment with several defences, attacks and seeds side by side, in processes.

    Without a list, the experiment's own is used.

    >>> secureafl.compare({"rounds": 100}, defenses=["fed_buff", "async_sdg"])
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: unknown defense 'async_sdg'; did you mean 'async_sgd'?
    """
    for name, values in (("defenses", defenses), ("attacks", attacks), ("seeds", seeds)):
        _require_list(name, values)
    axes = {"defense": [*defenses], "attack": [*attacks], "seed": [*seeds]}
    named = {key: values for key, values in axes.items() if values}
    folder = out or free_folder(_RUNS, f"compare-{time.strftime('%Y%m%d-%H%M%S')}")
    return run_grid(
        experiment, named, folder, workers=workers, progress=progress, callbacks=callbacks
    )


def run_grid(
    experiment: Given,
    axes: Mapping[str, Sequence[Kind]] | None = None,
    out: Path | str | None = None,
    engine: EngineName = "local",
    workers: int = 0,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RunResults:
    """Run every cell of a grid that has no result yet, and return all results.

    Args:
        experiment: What all cells share; without `axes`, the path of a grid's TOML file.
        axes: The values that settings take in turn, by their dotted names.
        out: The folder for the run folders; without one, below `runs`.
        engine: Where cells run: local, ray or slurm.
        workers: Cells at a time; 0: as many as fit.
        progress: Whether to show how far they are.
        callbacks: Told what happens in the runs, from this process.

    >>> secureafl.run_grid({"rounds": 100}, {"training.batch_size": []})
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: axes.training.batch_size = []: give a list of one value ...
    """
    grid, name = _grid(experiment, axes)
    folder = Path(out) if out is not None else _RUNS / name
    cells = grid.cells()
    refuse_script_classes(cells)
    require_runnable(engine, cells, folder)
    for note in notes_before(cells.values()):
        warnings.warn(note, stacklevel=2)
    failed: dict[str, str] = {}
    finished = run_cells(cells, folder, engine, workers, 60.0, not progress, failed, callbacks)
    for cell, message in failed.items():
        done = f"{len(finished)} of {len(cells)} runs are finished, in {folder}"
        raise RunError(f"{cell}: {message}; {done}")
    results = RunResults(folder / cell for cell in finished)
    still = (f"{run.name}: {note}" for run in results if (note := note_after(run.summary)))
    if note := next(still, ""):
        warnings.warn(note, stacklevel=2)
    return results


def run_into(
    experiment: Experiment,
    path: Path,
    progress: bool,
    checkpoint_seconds: float,
    callbacks: Sequence[Callback],
) -> None:
    """Bring the run in `path` to its end; stopped, it saves a checkpoint first."""
    require_callbacks(callbacks)
    if (path / RESULT).is_file():
        require_same(experiment, path)
    else:
        for note in notes_before([experiment]):
            warnings.warn(note, stacklevel=3)
        recording = open_run(experiment, path, checkpoint_seconds)
        if progress:
            print(f"memory: about {recording.simulation.memory}", file=sys.stderr)
        if not follow(recording, not progress, callbacks):
            raise KeyboardInterrupt(f"stopped; the same call with out={str(path)!r} goes on")
    if note := note_after(read_json(path / RESULT)):
        warnings.warn(note, stacklevel=3)


def follow(recording: Recording, quiet: bool, callbacks: Sequence[Callback] = ()) -> bool:
    """Show a run's progress to its end; returns whether it got there or was told to stop."""
    path, simulation = recording.folder.path, recording.simulation
    name, runs = path.name, {path: simulation.experiment}
    progress, told = RunProgress(round=simulation.round), 0.0
    # Only the main thread may listen to signals.
    in_main = threading.current_thread() is threading.main_thread()
    with (
        make_display({name: simulation.experiment.rounds}, quiet) as display,
        Following(callbacks, runs, display.note) as following,
    ):
        display.tell(Update(name, progress, "running"))
        following.look(path)
        for event in until_stopped(recording) if in_main else recording:
            progress = progress.after(event)
            if time.monotonic() - told >= _TELL_SECONDS:
                display.tell(Update(name, progress, "running"))
                following.look(path)
                told = time.monotonic()
        ended = "finished" if simulation.finished else "stopped"
        display.tell(Update(name, progress, ended))
    return simulation.finished


def run_cells(
    cells: Mapping[str, Experiment],
    folder: Path,
    engine: EngineName,
    workers: int,
    checkpoint_seconds: float,
    quiet: bool,
    failed: dict[str, str] | None = None,
    callbacks: Sequence[Callback] = (),
    go_on: Callable[[Update], Sequence[str]] = lambda update: (),
) -> list[str]:
    """Run the cells that have no result yet; return the names of all that are finished.

    Why others failed is put into `failed`, or said where there is none. `go_on` is told every
    update; it may add to the cells, and returns what to say.
    """
    require(whole_number(workers) is not None and workers >= 0, "workers", workers, _MANY)
    states: dict[str, str] = {}
    start, runs = find_engine(engine), {folder / k: one_thread(cell) for k, cell in cells.items()}
    rounds = {name: cell.rounds for name, cell in cells.items()}
    with (
        make_display(rounds, quiet) as display,
        Following(require_callbacks(callbacks), runs, display.note) as following,
    ):
        for update in run_sweep(start, cells, folder, workers, checkpoint_seconds):
            for line in go_on(update):
                display.note(line)
            if len(cells) > len(rounds):
                rounds |= {name: cell.rounds for name, cell in cells.items()}
            display.tell(update)
            following.look(folder / update.cell)
            states[update.cell] = update.state
            if update.state == "failed" and failed is not None:
                failed[update.cell] = update.message
            elif update.state == "waiting" and failed is None:
                display.note(f"{update.cell} failed and is tried again later: {update.message}")
            elif update.state == "failed":
                display.note(f"{update.cell} failed: {update.message}")
    return [name for name in cells if states[name] == "finished"]


def run_name(experiment: Experiment) -> str:
    """What the folder of a run is called, unless it is told."""
    parts = [name_for_files(x) for x in (experiment.task, experiment.defense, experiment.attack)]
    return "-".join([*parts, f"seed{experiment.seed}"])


def free_folder(parent: Path, name: str) -> Path:
    """A folder nobody has used: name, name-2, and so on."""
    path, number = parent / name, 2
    while path.exists():
        path, number = parent / f"{name}-{number}", number + 1
    return path


def as_experiment(given: Given) -> Experiment:
    """The experiment that a caller gave in one of several forms."""
    if isinstance(given, Experiment):
        return given
    if isinstance(given, Mapping):
        return from_mapping(given)
    return read_experiment(_path(given))


def _path(given: object) -> Path:
    if not isinstance(given, str | Path):
        remedy = "give an Experiment, a mapping of settings, or the path of a TOML file"
        raise ConfigError(f"experiment = {given!r}: {remedy}")
    return find_file(Path(given))


def _require_list(name: str, values: object) -> None:
    """Raise for one value where several may be given; a text is one, though it has letters."""
    fits = isinstance(values, Iterable) and not isinstance(values, str | Mapping)
    several = values.split(",") if isinstance(values, str) else [values]
    require(fits, name, values, f"give a list, such as {several}")


def _grid(given: Given, axes: Mapping[str, Sequence[Kind]] | None) -> tuple[Grid, str]:
    """The grid, and what its folder is called."""
    if axes is None:
        path = _path(given)
        return read_grid(path), path.stem
    if isinstance(given, Experiment):
        base = to_mapping(given)
    else:
        base = dict(given) if isinstance(given, Mapping) else read_settings(_path(given))
    remedy = 'give a mapping, such as {"seed": [0, 1]}'
    require(isinstance(axes, Mapping), "axes", axes, remedy)
    for key, values in axes.items():
        _require_list(f"axes.{key}", values)
    plain = {key: [as_settings(value) for value in values] for key, values in axes.items()}
    return Grid("grid", base, plain), f"grid-{time.strftime('%Y%m%d-%H%M%S')}"


def as_settings(value: Kind) -> Any:
    """A plug-in as a table of settings; anything else as it is."""
    isobject = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return plug_in_settings(value, TABLES) if isobject else value


def refuse_script_classes(cells: Mapping[str, Experiment]) -> None:
    """Raise if a cell needs a class of the script itself, which other processes do not run."""
    for experiment in cells.values():
        for name in PLUG_INS:
            part = getattr(experiment, name)
            if type(part).__module__ == "__main__":
                where = "runs in other processes, which import files"
                raise ConfigError(
                    f"{type(part).__name__}: a comparison {where}; "
                    "put the class into a file of its own"
                )
