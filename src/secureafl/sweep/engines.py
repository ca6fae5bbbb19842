"""Engines run cells. Each is a module here, local, ray or slurm, with the function `run_cells`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from secureafl.core.setting_types import fitted
from secureafl.experiment import Experiment
from secureafl.runs.folder import require_writable
from secureafl.runs.layout import RESULT
from secureafl.sweep.cells import Update

EngineName = Literal["local", "ray", "slurm"]


class Engine(Protocol):
    """A function that runs cells in folders named after them and yields updates."""

    def __call__(
        self,
        cells: Mapping[str, Experiment],
        out: Path,
        workers: int,
        checkpoint_seconds: float,
        apart: bool = False,
    ) -> Generator[Update, None, None]:
        """Run `workers` cells at a time; 0: as many as the engine thinks fit.

        Each cell ends with one update that is not "running", and is then gone from `cells`. There
        may be more of them after an update; an engine that does not look for them is called once
        more. Closing the generator stops them.
        `apart`: none shares a process with another, which might have brought it down.
        """
        ...


def find_engine(name: EngineName) -> Engine:
    """Return the engine of that name; the packages it needs are imported when it runs."""
    return _module(name).run_cells


def require_engine(name: EngineName, devices: Iterable[str]) -> None:
    """Raise unless cells for these devices can be run by it from here; nothing is written."""
    _module(name).require_here(devices)


def require_runnable(name: EngineName, cells: Mapping[str, Experiment], out: Path) -> None:
    """Raise if those without a result could not be run from here; nothing is written.

    What is wrong for all of them is said once so, not by each.
    """
    left = {out / k: cell for k, cell in cells.items() if not (out / k / RESULT).is_file()}
    if not left:
        return
    module = _module(name)
    module.require_here({cell.device for cell in left.values()})
    for folder in {path.parent for path in left}:
        require_writable(folder)
    if hasattr(module, "require_data"):  # on a cluster it may be where the cells run
        module.require_data(left.values())


def _module(name: EngineName) -> Any:
    fitted(EngineName, name, "engine")
    return importlib.import_module(f"secureafl.sweep.{name}")


class _Left(Mapping[str, Experiment]):
    """The cells that have not ended, of all that there are by now, each with its threads."""

    def __init__(self, cells: Mapping[str, Experiment]) -> None:
        self._cells, self._ended = cells, set[str]()

    def end(self, name: str) -> None:
        self._ended.add(name)

    def __getitem__(self, name: str) -> Experiment:
        return one_thread(self._cells[name])

    def __iter__(self) -> Iterator[str]:
        return (name for name in [*self._cells] if name not in self._ended)

    def __len__(self) -> int:
        return len(self._cells) - len(self._ended)


def run_sweep(
    engine: Engine,
    cells: Mapping[str, Experiment],
    out: Path,
    workers: int = 0,
    checkpoint_seconds: float = 60.0,
) -> Generator[Update, None, None]:
    """Run the cells that have no result yet; one that fails is tried once more, after the others.

    Who takes the updates may add to `cells` after each. What is in `out` decides what is left to
    do, so the same call after a kill goes on.
    """
    left, ended = _Left(cells), True
    while left and ended:
        again: dict[str, Experiment] = {}
        ended = False
        with contextlib.closing(engine(left, out, workers, checkpoint_seconds)) as updates:
            for update in updates:
                failed = update.state in ("failed", "stopped")
                if failed:
                    again[update.cell] = left[update.cell]
                if failed or update.state == "finished":
                    left.end(update.cell)
                    ended = True
                yield update._replace(state="waiting") if failed else update
        if again:
            yield from engine(again, out, workers, checkpoint_seconds, apart=True)


def one_thread(experiment: Experiment) -> Experiment:
    """Use one thread unless told: a number that followed from `workers` would change the bits."""
    return experiment if experiment.threads else dataclasses.replace(experiment, threads=1)
