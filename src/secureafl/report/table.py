"""A table of runs: settings make its rows and columns, a cell is a mean over seeds."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from secureafl.core.errors import ConfigError, RunError
from secureafl.paper.tables import reported_figures
from secureafl.presentation.labels import flat_texts
from secureafl.report.cells import Cell, cell_of
from secureafl.report.export import (
    Table,
    Value,
    accepted_of,
    distances_of,
    figures_of,
    plain,
    share,
)
from secureafl.report.formatting import NOTHING
from secureafl.runs.find import find_runs
from secureafl.runs.layout import EXPERIMENT
from secureafl.runs.origin import WHERE_MADE, origin_of
from secureafl.settings import did_you_mean
from secureafl.toml import read_toml

Show = Literal["figures", "accepted", "malicious", "steps", "distance", "origin"]
Key = tuple[str, ...]  # a value for each axis

ARCHIVE = ".tar.gz"
_REMEDY = "name what differs as --rows or --columns, or leave one of them out"
_ORIGIN = ("seeds", "hardware", "software", "days", "data")


class Axis(NamedTuple):
    """A setting whose values are rows or columns, such as `attack` or `partition.degree`."""

    setting: str
    values: Key  # those to show, in this order; empty: all there are


class Run(NamedTuple):
    """One run with its settings as texts, under their dotted names."""

    path: Path
    settings: Mapping[str, str]


def parse_axis(text: str) -> Axis:
    """Read an axis as it is given on a command line: `attack`, or `attack=none,sign_flip`.

    Values may be as a table shows them: `defense=kardam,secure_afl (alpha=0.4, window=9)`.
    """
    setting, equals, values = text.partition("=")
    apart = re.split(r",(?![^()]*\))", values)  # not inside brackets
    chosen = tuple(value.strip() for value in apart) if equals else ()
    if "" in chosen:
        raise ConfigError(f"{text}: a value is empty; give values after =, with commas between")
    return Axis(setting.strip(), chosen)


def read_sources(sources: Sequence[Path], place: Path) -> list[Run]:
    """Read the settings of all runs in folders and archives; archives are unpacked to `place`."""
    folders = [_unpacked(path, place) if path.name.endswith(ARCHIVE) else path for path in sources]
    found = find_runs(folders).runs
    return [Run(run, flat_texts(read_toml(run / EXPERIMENT))) for run in found]


def make_table(
    runs: Sequence[Run], rows: Sequence[Axis], columns: Sequence[Axis], show: Show, paper: bool
) -> Table:
    """Make the table; with `paper`, the paper's figures stand in brackets beside ours."""
    down = _keys(runs, rows)
    if show == "origin":
        lines = [[*map(plain, key), *map(plain, _origin(chosen))] for key, chosen in down.items()]
        return Table(show, _TITLES[show], [*_names(rows), *_ORIGIN], lines)
    across = _keys(runs, columns)
    headings = [", ".join(key) or show for key in across]

    def made(row: Sequence[Run], column: Sequence[Run]) -> Value:
        there = {run.path for run in column}
        chosen = [run for run in row if run.path in there]
        if show == "distance":
            return _distances(chosen)
        return _WRITERS[show](_one_cell(chosen, paper)) if chosen else plain(None)

    lines = [
        [*map(plain, key), *(made(chosen, others) for others in across.values())]
        for key, chosen in down.items()
    ]
    return Table(show, _TITLES[show], [*_names(rows), *headings], lines)


def _unpacked(archive: Path, place: Path) -> Path:
    folder = place / archive.name.removesuffix(ARCHIVE)
    if not folder.exists():
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise RunError(f"{archive}: cannot be unpacked ({error})") from error
    return folder


def _names(axes: Iterable[Axis]) -> list[str]:
    return [axis.setting.rpartition(".")[2] for axis in axes]


def _keys(runs: Sequence[Run], axes: Sequence[Axis]) -> dict[Key, list[Run]]:
    """The runs of each row, or of each column, in order."""
    labels = [_labels(runs, axis) for axis in axes]
    found: dict[Key, list[Run]] = {}
    for place, run in enumerate(runs):
        key = tuple(of_axis[place] for of_axis in labels)
        if all(not axis.values or v in axis.values for axis, v in zip(axes, key, strict=True)):
            found.setdefault(key, []).append(run)
    return {key: found[key] for key in sorted(found, key=lambda key: _places(key, axes))}


def _places(key: Key, axes: Sequence[Axis]) -> list[tuple[float, str]]:
    """Where a key comes in the order: as its axes say, else numbers as such and texts as texts."""
    return [
        (axis.values.index(value), "") if axis.values else _by_number(value)
        for axis, value in zip(axes, key, strict=True)
    ]


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return 0.0, text


def _labels(runs: Sequence[Run], axis: Axis) -> list[str]:
    """The value each run has on an axis."""
    known = {name for run in runs for name in run.settings}
    if f"{axis.setting}.kind" in known:
        labels = _plug_ins(runs, axis.setting)
    elif axis.setting in known:
        labels = [run.settings.get(axis.setting, NOTHING) for run in runs]
    else:
        hint = did_you_mean(axis.setting, sorted(known))
        raise ConfigError(f"no run has a setting '{axis.setting}'{hint}")
    for value in axis.values:
        if value not in labels:
            there = dict.fromkeys(labels)
            raise ConfigError(f"no run has {axis.setting} = {value}{did_you_mean(value, there)}")
    return labels


def _plug_ins(runs: Sequence[Run], part: str) -> list[str]:
    """The kind of a plug-in, with those of its settings that most runs of the kind have not.

    Runs from before a setting came say nothing of it, so they are not counted for it.
    """
    kinds = [run.settings.get(f"{part}.kind", NOTHING) for run in runs]
    values = Counter(
        (kind, name, value)
        for kind, run in zip(kinds, runs, strict=True)
        for name, value in run.settings.items()
        if name.startswith(f"{part}.")
    )
    said = Counter((kind, name) for kind, name, _ in values.elements())
    labels = []
    for kind, run in zip(kinds, runs, strict=True):
        own = [
            f"{name.partition('.')[2]}={value}"
            for name, value in run.settings.items()
            if name.startswith(f"{part}.") and 2 * values[kind, name, value] <= said[kind, name]
        ]
        labels.append(f"{kind} ({', '.join(own)})" if own else kind)
    return labels


def _one_cell(runs: Sequence[Run], paper: bool) -> Cell:
    _require_one_experiment(runs)
    names = [runs[0].settings.get(f"{part}.kind", "") for part in ("task", "defense", "attack")]
    return cell_of([run.path for run in runs], reported_figures(*names) if paper else {})


def _distances(runs: Sequence[Run]) -> Value:
    """How far runs are from the paper's figures, over all attacks that it has."""
    by_attack: dict[Key, list[Run]] = {}
    for run in runs:
        attack = (f"{k}={v}" for k, v in run.settings.items() if k.startswith("attack."))
        by_attack.setdefault(tuple(sorted(attack)), []).append(run)
    return distances_of([_one_cell(its, paper=True) for its in by_attack.values()])


def _require_one_experiment(runs: Sequence[Run]) -> None:
    """Refuse a mean over runs that differ in more than their seeds."""
    by_seed: dict[str, Run] = {}
    for run in runs:
        other = by_seed.setdefault(run.settings.get("seed", ""), run)
        if other is not run:
            names = run.settings.keys() | other.settings.keys()
            apart = sorted(n for n in names if run.settings.get(n) != other.settings.get(n))
            told = f"differ in {', '.join(apart)}" if apart else "are of one experiment"
            raise ConfigError(f"{other.path.name} and {run.path.name} {told}; {_REMEDY}")
    for run in runs:
        # What only one of them has may be newer than the other.
        both = (run.settings.keys() & runs[0].settings.keys()) - {"seed", *WHERE_MADE}
        if apart := sorted(n for n in both if run.settings[n] != runs[0].settings[n]):
            told = f"{runs[0].path.name} and {run.path.name} differ in {', '.join(apart)}"
            raise ConfigError(f"{told}; {_REMEDY}")


def _origin(runs: Sequence[Run]) -> list[str]:
    origin = origin_of(run.path for run in runs)
    seeds = sorted({run.settings.get("seed", NOTHING) for run in runs}, key=_by_number)
    parts = (seeds, origin.devices, origin.versions, origin.days, origin.data)
    return [", ".join(part) for part in parts]


def _steps(cell: Cell) -> Value:
    if cell.steps is None:
        return plain(None)
    return Value(f"{cell.steps:,.0f}", {"": cell.steps})


_WRITERS: dict[str, Callable[[Cell], Value]] = {
    "figures": figures_of,
    "accepted": accepted_of,
    "malicious": lambda cell: share(cell.malicious),
    "steps": _steps,
}
_TITLES: dict[Show, str] = {
    "figures": "Figures, mean ± standard deviation over seeds",
    "accepted": "Accepted uploads: honest, malicious",
    "malicious": "Accepted uploads of malicious clients",
    "steps": "Model steps",
    "distance": "Cells within the paper's deviation, and mean distance from its figures",
    "origin": "Where the numbers come from",
}
