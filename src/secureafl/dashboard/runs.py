"""The run folders a page can show: found, listed, and followed while somebody looks."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError
from secureafl.presentation.labels import kind
from secureafl.runs.folder import EVENTS, EXPERIMENT, RESULT, last_events
from secureafl.runs.watch import Watch
from secureafl.toml import read_toml

_DEEPEST, _MOST_RUNS = 3, 2000
_SEARCH_SECONDS = 2.0
_MOST_FOLLOWED = 16  # the memory of those nobody looked at for longest is given back


class Runs:
    """Run folders by name; new ones turn up by themselves."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunError(f"{root}: no such folder; give a run folder, or a folder of them")
        self.root = root.resolve()
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._searched = float("-inf")
        self._followed: OrderedDict[str, Watch] = OrderedDict()
        self._briefs: dict[str, tuple[Any, dict[str, Any]]] = {}

    def names(self) -> list[str]:
        """All there are now."""
        with self._lock:
            self._search()
            return list(self._found)

    def newest(self) -> str:
        """The run that was written last; empty if there is none."""
        with self._lock:
            self._search()
            stamps = {name: _stamp(path / EVENTS) or (0, 0) for name, path in self._found.items()}
            return max(stamps, key=lambda name: stamps[name], default="")

    def watch(self, name: str) -> Watch | None:
        """The run of this name, to be followed; None if there is none."""
        with self._lock:
            self._search()
            if name not in self._found:
                return None
            watch = self._followed.pop(name, None) or Watch(self._found[name])
            self._followed[name] = watch
            while len(self._followed) > _MOST_FOLLOWED:
                self._followed.popitem(last=False)
            return watch

    def briefs(self) -> list[dict[str, Any]]:
        """A line about each run, read from the ends of its files."""
        with self._lock:
            self._search()
            return [self._brief(name, path) for name, path in self._found.items()]

    def _brief(self, name: str, path: Path) -> dict[str, Any]:
        mark = tuple(_stamp(path / file) for file in (EVENTS, EXPERIMENT, RESULT))
        known = self._briefs.get(name)
        if known is None or known[0] != mark:
            self._briefs[name] = known = (mark, _brief(name, path))
        return known[1]

    def _search(self) -> None:
        if time.monotonic() - self._searched < _SEARCH_SECONDS:
            return
        if _is_run(self.root):
            self._found = {self.root.name: self.root}
        else:
            paths = _inside(self.root, _DEEPEST)
            fresh = {path.relative_to(self.root).as_posix(): path for path in paths}
            # A run that was seen stays listed: its page says that the folder is gone.
            self._found = dict(sorted((self._found | fresh).items()))
        self._searched = time.monotonic()


def _is_run(path: Path) -> bool:
    return (path / EXPERIMENT).is_file() or (path / EVENTS).is_file()


def _inside(folder: Path, depth: int) -> list[Path]:
    try:
        # A name with a dot is a folder that is just being made.
        folders = [Path(e) for e in os.scandir(folder) if e.is_dir() and e.name[0] != "."]
    except OSError:
        return []
    found: list[Path] = []
    for one in folders:
        if _is_run(one):
            found.append(one)
        elif depth > 1:
            found += _inside(one, depth - 1)
    return found[:_MOST_RUNS]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _brief(name: str, path: Path) -> dict[str, Any]:
    try:
        settings = read_toml(path / EXPERIMENT)
    except Exception:  # whatever is wrong with it, the run's own page says so
        settings = {}
    try:
        last = last_events(path)
        rounds = max((event.round for event in last), default=0)
    except (RunError, TypeError):
        rounds = 0
    return {
        "name": name,
        "defense": kind(settings, "defense"),
        "attack": kind(settings, "attack"),
        "seed": str(settings.get("seed", "")),
        "rounds": rounds if isinstance(rounds, int) else 0,
        "finished": (path / RESULT).exists(),
    }
