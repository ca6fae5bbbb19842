"""The grid of a request to reproduce a table or figure, and the page of its run folders."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.experiment import to_mapping, with_settings
from secureafl.paper.tables import COUNTERPARTS, main_table, tasks
from secureafl.report.artefact import Brief
from secureafl.report.cells import Sheet, cell_of
from secureafl.reproduce.artefacts import ARTEFACTS, ESTIMATION, RUNTIME, Artefact
from secureafl.reproduce.claims import CLAIMS, judge
from secureafl.runs.layout import EXPERIMENT, RESULT, is_run
from secureafl.runs.origin import WHERE_MADE, Origin, origin_of
from secureafl.settings import did_you_mean
from secureafl.sweep.grid import Grid, parse_seeds, read_grid
from secureafl.tasks.sources import SOURCES
from secureafl.toml import differences, flatten, read_toml

NAMES = [*ARTEFACTS, ESTIMATION, RUNTIME]
DEFAULT_TASK = "fashion_mnist"
_NOT_OF = {  # what there is nothing to choose of
    ESTIMATION: ("methods", "attacks"),
    RUNTIME: ("methods", "attacks", "seeds", "rounds", "data_dir"),
}
_PAPERS_RATE = 0.01  # for every task
_HERE = Path(__file__).parent
_SIZES = re.compile(r"\(([\d,]+) training, ([\d,]+) test samples\)")  # of what a run found
_LATE = "Of a run, the mean of its late evaluations counts."


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be reproduced, and how much of it."""

    name: str
    task: str = DEFAULT_TASK
    seeds: str = ""  # as 0-4 or 0,1,2; empty: five as in the paper, or one if fast
    rounds: int = 0  # 0: the paper's
    methods: tuple[str, ...] = ()  # rows; none: all
    attacks: tuple[str, ...] = ()  # none: all
    fast: bool = False
    device: str = ""  # where to compute; empty: automatic
    data_dir: str = ""  # of the data set; empty: where it usually is

    def __post_init__(self) -> None:
        name, task, known = self.name, self.task, tasks()
        if name not in NAMES:
            raise ConfigError(f"cannot reproduce {name!r}{did_you_mean(name, NAMES)}")
        if task not in known:
            raise ConfigError(f"the paper has no task {task!r}{did_you_mean(task, known)}")
        if task != DEFAULT_TASK and not (name in ARTEFACTS and self.artefact.any_task):
            raise ConfigError(f"the paper has {name!r} on {DEFAULT_TASK} only, not on {task}")
        for option in _NOT_OF.get(name, ()):
            if getattr(self, option):
                raise ConfigError(f"{name} has no --{option.replace('_', '-')}: leave it out")

    @property
    def artefact(self) -> Artefact:
        """The description of the table or figure."""
        return ARTEFACTS[self.name]

    @property
    def command(self) -> str:
        """The command line that asks for the same results."""
        options = {
            "task": self.task if self.task != DEFAULT_TASK else "",
            "seeds": self.seeds,
            "rounds": self.rounds,
            "methods": ",".join(self.methods),
            "attacks": ",".join(self.attacks),
        }
        words = [f"--{name} {value}" for name, value in options.items() if value]
        return " ".join(["secureafl reproduce", self.name, *words, *["--fast"] * self.fast])


def grid_for(request: Request) -> Grid:
    """The grid of the artefact, cut down to what was asked for."""
    grid = read_grid(_HERE / "grids" / f"{request.name}.toml")
    base: Mapping[str, Any] = read_toml(_HERE / "tasks" / f"{request.task}.toml")
    axes = dict(grid.axes)
    if request.fast:
        changes, new_axes = _fast(request)
        base, axes = with_settings(base, changes), {**axes, **new_axes}
        axes["seed"] = axes["seed"][:1]
    if request.seeds:
        axes["seed"] = parse_seeds(request.seeds)
    plain = {"rounds": request.rounds, "device": request.device, "task.data_dir": request.data_dir}
    base = with_settings(base, {key: value for key, value in plain.items() if value})
    if request.name in ARTEFACTS:
        axes = _chosen(request, axes)
    return Grid(grid.title, base, axes)


def brief_for(request: Request, out: Path) -> Brief:
    """Describe the page of these runs; `out` holds a run folder for each cell."""
    artefact, grid = request.artefact, grid_for(request)
    runs = [out / name for name in grid.places()]
    sheets = [_sheet(request, grid, value, out) for value in grid.axes.get(artefact.sheets, [""])]
    warnings = warnings_of(request, runs)
    return Brief(
        title=title_of(request),
        command=request.command,
        warnings=warnings,
        notes=[*artefact.notes, _LATE, seed_note(grid)],
        seeds=grid.axes["seed"],
        row_name=artefact.row_name,
        column_name=artefact.column_name,
        sheets=sheets,
        ours=[row for row in artefact.ours if row in sheets[0].rows],
        curves=bool(artefact.sheets),
        runs=runs,
        # Of runs that are scaled down they would say nothing.
        claims=[] if request.fast else judge(CLAIMS.get(request.name, ()), sheets, warnings),
    )


def title_of(request: Request) -> str:
    """Return the title of the page."""
    return f"{grid_for(request).title}, {request.task}"


def warnings_of(request: Request, runs: Sequence[Path]) -> list[str]:
    """List how these runs differ from the paper's, and from what was asked for."""
    origin, base = origin_of(runs), grid_for(request).base
    own = [] if request.fast else _own_settings(base, origin)
    return [
        *_parts(request.task, bool(base["task"].get("mirrored")), origin.data),
        *_scaled(request, base),
        *own,
        *_of_others(request, runs),
    ]


def _scaled(request: Request, base: Mapping[str, Any]) -> list[str]:
    full = grid_for(dataclasses.replace(request, fast=False, rounds=0)).base["rounds"]
    if request.fast:
        training = base["training"]
        return [
            f"Scaled down (--fast): {base['rounds']:,} rounds instead of {full:,}, "
            f"{base['clients']} clients unless said otherwise, batches of "
            f"{training['batch_size']}, learning rate {training['learning_rate']}, "
            f"{base['root_samples']} trusted samples. "
            "This shows that every cell runs; it does not reproduce the paper's figures."
        ]
    shorter = f"{base['rounds']:,} rounds instead of the paper's {full:,}."
    return [shorter] * (base["rounds"] != full)


def _parts(task: str, mirrored: bool, data: Sequence[str]) -> list[str]:
    """Say where runs had less than the whole data set, or another one, by what they found."""
    source, said = SOURCES[task], []
    for found in data:
        sizes = _SIZES.search(found)
        if not sizes:
            continue
        train, test = (int(size.replace(",", "")) for size in sizes.groups())
        train //= 2 if mirrored else 1
        if not source.train:
            recordings = re.search(r"(\d+) recordings", found)
            number = f"{recordings[1]}, with " if recordings else ""
            said.append(
                f"Other recordings than the paper's: {number}{train:,} pictures for training and "
                f"{test:,} for the test."
            )
        elif train < source.train or test < source.test:
            said.append(
                f"A part of the data only: {train:,} of {source.train:,} training images, "
                f"{test:,} of {source.test:,} test images."
            )
    return list(dict.fromkeys(said))


def _of_others(request: Request, runs: Sequence[Path]) -> list[str]:
    """Say how many runs that stand at a place of this page were made for something else."""
    done = [run for run in runs if (run / RESULT).is_file() and is_run(run)]
    wanted, found = grid_for(request).cells() if done else {}, []
    for run in done:
        there = flatten(read_toml(run / EXPERIMENT))
        here = flatten(to_mapping(wanted[run.name]))
        both = [key for key in here if key in there and key not in WHERE_MADE]
        if told := differences({key: there[key] for key in both}, {key: here[key] for key in both}):
            found.append(f"{run.name}: {told}")
    if not found:
        return []
    return [
        f"{len(found)} of {len(done)} runs have other settings than this page says ({found[0]})."
    ]


def _own_settings(base: Mapping[str, Any], origin: Origin) -> list[str]:
    """What a task's runs have otherwise than the paper's, in words."""
    training, said = base["training"], []
    if training["learning_rate"] != _PAPERS_RATE:
        said.append(f"Learning rate {training['learning_rate']} instead of {_PAPERS_RATE}.")
    if base["task"].get("mirrored"):
        said.append("Every training image is there a second time, mirrored.")
    if "precision" in training and origin.gpus:  # on a CPU it is float32 either way
        where = "" if origin.gpus == origin.devices else " of runs on a GPU"
        said.append(f"Layers{where} compute in {training['precision']} (mixed precision).")
    return said


def seed_note(grid: Grid) -> str:
    """Say how many runs a figure is the mean of."""
    seeds = len(grid.axes["seed"])
    return f"Figures are means of {seeds} {'run' if seeds == 1 else 'runs'}; the paper's of five."


def _fast(request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and axes of the scaled-down version."""
    fast = read_toml(_HERE / "fast.toml")
    of_task, of_grid = fast["task"].get(request.task, {}), fast["grid"].get(request.name, {})
    return {**fast["settings"], **of_task, **of_grid}, fast["axes"].get(request.name, {})


def _chosen(request: Request, axes: dict[str, Any]) -> dict[str, Any]:
    """The axes with the rows and attacks that were asked for; else those the paper has."""
    artefact, paper = request.artefact, main_table(request.task)
    named = _named(request, artefact.rows)
    if artefact.rows == "defense" and not artefact.row_names:
        rows = list(request.methods) or [
            d for d in axes["defense"] if COUNTERPARTS.get(d, d) in paper
        ]
    else:
        for name in request.methods:
            if name not in named:
                raise ConfigError(f"no row {name!r} in {request.name}{did_you_mean(name, named)}")
        rows = [named[name] for name in request.methods or named]
    known = _named(request, "attack")
    wanted = request.attacks or [name for name in known if name in paper["secure_afl"]]
    return {**axes, artefact.rows: rows, "attack": [known.get(name, name) for name in wanted]}


def _sheet(request: Request, grid: Grid, at: str, out: Path) -> Sheet:
    artefact, table = request.artefact, request.artefact.table(request.task)
    rows, columns = (_names(request, grid, axis) for axis in (artefact.rows, artefact.columns))
    runs: dict[tuple[str, str], list[Path]] = {}
    for cell, place in grid.places().items():
        if not artefact.sheets or place[artefact.sheets] == at:
            where = rows[_text(place[artefact.rows])], columns[_text(place[artefact.columns])]
            runs.setdefault(where, []).append(out / cell)
    cells = {
        (row, column): cell_of(folders, artefact.beside(table, at, row, column))
        for (row, column), folders in runs.items()
    }
    across = [columns[_text(value)] for value in grid.axes[artefact.columns]]
    return Sheet(at or request.task, list(rows.values()), across, cells)


def _names(request: Request, grid: Grid, axis: str) -> dict[str, str]:
    """The names of an axis' values, in the artefact's order and then those that it has not."""
    chosen = grid.axes[axis]
    named = {name: value for name, value in _named(request, axis).items() if value in chosen}
    named |= {str(value): value for value in chosen if value not in named.values()}
    return {_text(value): name for name, value in named.items()}


def _named(request: Request, axis: str) -> dict[str, Any]:
    """All values of an axis of the artefact's grid, by name."""
    artefact = request.artefact
    values = read_grid(_HERE / "grids" / f"{request.name}.toml").axes[axis]
    names = {artefact.rows: artefact.row_names, artefact.columns: artefact.column_names}
    return dict(zip(names.get(axis) or map(str, values), values, strict=True))


def _text(value: Any) -> str:
    """Write a value, which may be a table, as a text that can be a key."""
    return json.dumps(value, sort_keys=True)
