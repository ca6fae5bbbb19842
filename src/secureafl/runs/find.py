"""Where run folders are: the same rules for the report, `results` and the dashboard.

A folder that has the settings of a run is a run, and nothing is looked for inside it. Any other
folder is searched to any depth. Names that begin with a dot are passed over: such a folder is just
being made, or was when its process was killed. Links to folders are followed, each folder once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from secureafl.core.errors import NoRunError
from secureafl.runs.layout import is_run


class Found(NamedTuple):
    """Run folders, and the folders that could not be searched."""

    runs: list[Path]
    unreadable: list[str]  # path and reason, for people


def find_runs(folders: Iterable[Path]) -> Found:
    """The runs of some folders, each once, in the order of the folders and then of names."""
    runs: dict[Path, Path] = {}
    unreadable: list[str] = []
    for folder in folders:
        found = search(folder)
        unreadable += found.unreadable
        if not found.runs:
            told = "; ".join([f"{folder}: no run folder in it", *found.unreadable])
            raise NoRunError(f"{told}; run folders are made by 'secureafl run'")
        for run in found.runs:
            runs.setdefault(run.resolve(), run)
    return Found(list(runs.values()), list(dict.fromkeys(unreadable)))


def search(folder: Path) -> Found:
    """The runs of one folder, or the folder itself if it is one; there may be none yet."""
    require_folder(folder)
    runs: list[Path] = []
    unreadable: list[str] = []
    waiting, links, seen = [folder], list[Path](), set[tuple[int, int]]()
    while waiting or links:
        # Links come last, so that a run is known by its own name rather than by a link's.
        here = waiting.pop() if waiting else links.pop(0)
        try:
            facts = here.stat()
            if (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            if is_run(here):
                runs.append(here)
                continue
            inside = _folders_in(here)
        except OSError as error:
            unreadable.append(f"{here}: cannot be read ({error.strerror}), so it is left out")
            continue
        waiting += [path for path in inside if not path.is_symlink()]
        links += [path for path in inside if path.is_symlink()]
    return Found(sorted(runs), sorted(unreadable))


def require_folder(folder: Path) -> None:
    """Raise unless there is such a folder."""
    if not folder.is_dir():
        raise NoRunError(f"{folder}: no such folder; give a run folder, or a folder of them")


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        found = [folder / e.name for e in entries if not e.name.startswith(".") and _is_folder(e)]
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True  # a link that leads nowhere we may look: said once it is opened
