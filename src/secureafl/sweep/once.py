"""Runs that are wanted in several places: one is made, the others are copies of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from secureafl.core.errors import SecureAflError
from secureafl.experiment import Experiment, to_mapping
from secureafl.runs.layout import RESULT, is_run
from secureafl.runtime.records import require_same
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
        name = maker = place.absolute().relative_to(self.folder).as_posix()
        if not is_run(place) or _is_of(one_thread(experiment), place):
            first = self._made_as.setdefault(repr(to_mapping(experiment)), name)
            maker = name if (place / RESULT).is_file() else first
        self._wanted.setdefault(maker, []).append(place)
        if maker == name:  # of what is there, too: an engine finds that it is finished, or another
            self.cells[name] = experiment

    def end(self, name: str) -> list[Path]:
        """A run has ended, with a result or without; return for which places."""
        self._ended.add(name)
        places = self._wanted.pop(name, [])
        for place in places:
            _copy(self.folder / name, place)
        return places

    def ended(self) -> list[Path]:
        """Places that are wanted of runs that had ended before."""
        return [
            place for name in [*self._wanted] if name in self._ended for place in self.end(name)
        ]


def _is_of(experiment: Experiment, run: Path) -> bool:
    with contextlib.suppress(SecureAflError):
        require_same(experiment, run)
        return True
    return False


def _copy(made: Path, wanted: Path) -> None:
    """Copy a finished run to where the same run is wanted, at once or not at all."""
    if not (made / RESULT).is_file() or (wanted / RESULT).is_file():
        return
    unfinished = wanted.with_name(f".{wanted.name}")
    for leftover in (unfinished, wanted):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(made, unfinished)
    unfinished.rename(wanted)
