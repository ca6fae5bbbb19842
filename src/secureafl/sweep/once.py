"""Runs that are wanted in several places: one is made, the others are copies of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment, to_mapping
from secureafl.runs.folder import RunFolder
from secureafl.runs.layout import RESULT, is_run
from secureafl.runtime.records import is_of
from secureafl.sweep.engines import one_thread


class MadeOnce:
    """Runs below a folder, of which those with the same settings are made once."""

    def __init__(self, places: Iterable[Path]) -> None:
        """All `places` in which runs are wanted lie in the folder."""
        self.folder = Path(os.path.commonpath([place.absolute() for place in places]))
        self.cells: dict[str, Experiment] = {}  # runs to make, by their place in the folder
        self._made_as: dict[str, str] = {}  # by settings
        self._wanted: dict[str, list[Path]] = {}  # where a run is wanted, by what is made
        self._ended = set[str]()

    def want(self, place: Path, experiment: Experiment) -> None:
        """The run is wanted in this folder of its own; a result or another run there stays."""
        name = maker = self._name(place)
        if not is_run(place) or is_of(one_thread(experiment), place):
            first = self._made_as.setdefault(repr(to_mapping(experiment)), name)
            maker = name if (place / RESULT).is_file() else first
        self._wanted.setdefault(maker, []).append(place)
        if maker == name:  # of what is there, too: an engine finds that it is finished, or another
            self.cells[name] = experiment

    def end(self, name: str) -> list[Path]:
        """A run has ended, with a result or without; return for which places.

        Where another process is making the same run meanwhile, it is a run to make, too: an engine
        waits for that process.
        """
        self._ended.add(name)
        places = self._wanted.pop(name, [])
        taken = [place for place in places if not _copy(self.folder / name, place)]
        for place in taken:
            self.cells[self._name(place)] = self.cells[name]
            self._wanted[self._name(place)] = [place]
        return [place for place in places if place not in taken]

    def ended(self) -> list[Path]:
        """Places that are wanted of runs that had ended before."""
        return [
            place for name in [*self._wanted] if name in self._ended for place in self.end(name)
        ]

    def _name(self, place: Path) -> str:
        return place.absolute().relative_to(self.folder).as_posix()


def _copy(made: Path, wanted: Path) -> bool:
    """Copy a finished run to where the same run is wanted, whole or not at all.

    Returns whether nothing is left to do; else another process makes that run, or something that is
    no run lies there, which an engine says.
    """
    if not (made / RESULT).is_file() or (wanted / RESULT).is_file():
        return True
    fresh = wanted.with_name(f".{wanted.name}.{os.getpid()}")
    try:
        shutil.copytree(made, fresh)
        if is_run(wanted):
            with contextlib.closing(RunFolder(wanted)):  # raises while another process has it
                shutil.rmtree(wanted)
        fresh.rename(wanted)
    except (RunError, OSError):
        return False
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True
