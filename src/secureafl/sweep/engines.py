"""Engines run cells. Each is the function `run_cells` of a module here: local, ray or slurm."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Literal, Protocol

from secureafl.experiment import Experiment
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

        Each cell ends with one update that is not "running". Closing the generator stops them.
        `apart`: none shares a process with another, which might have brought it down.
        """
        ...


def find_engine(name: EngineName) -> Engine:
    """Return the engine of that name; the packages it needs are imported when it runs."""
    return importlib.import_module(f"secureafl.sweep.{name}").run_cells


def run_sweep(
    engine: Engine,
    cells: Mapping[str, Experiment],
    out: Path,
    workers: int = 0,
    checkpoint_seconds: float = 60.0,
) -> Generator[Update, None, None]:
    """Run the cells that have no result yet; one that fails is tried once more, after the others.

    What is in `out` decides what is left to do, so the same call after a kill goes on.
    """
    cells = {name: one_thread(cell) for name, cell in cells.items()}
    again: dict[str, Experiment] = {}
    with contextlib.closing(engine(cells, out, workers, checkpoint_seconds)) as updates:
        for update in updates:
            if update.state in ("failed", "stopped"):
                again[update.cell] = cells[update.cell]
                yield update._replace(state="waiting")
            else:
                yield update
    if again:
        yield from engine(again, out, workers, checkpoint_seconds, apart=True)


def one_thread(experiment: Experiment) -> Experiment:
    """Use one thread unless told: a number that followed from `workers` would change the bits."""
    return experiment if experiment.threads else dataclasses.replace(experiment, threads=1)
