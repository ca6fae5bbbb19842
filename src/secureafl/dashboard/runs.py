"""The run folders a page can show: found, listed, and followed while somebody looks."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from secureafl.core.errors import RunError
from secureafl.dashboard.messages import finite, late_means
from secureafl.presentation.labels import as_faced, kind
from secureafl.runs.events import last_evaluation, last_events
from secureafl.runs.find import Found, require_folder, search
from secureafl.runs.layout import EVENTS, EXPERIMENT, RESULT, is_deployed, read_json
from secureafl.runs.watch import Watch
from secureafl.toml import read_toml

_SEARCH_SECONDS = 2.0
_SEARCH_SHARE = 20  # between two searches of a large tree passes this many times what one takes
_MOST_FOLLOWED = 16  # the memory of those nobody looked at for longest is given back


class Runs:
    """Run folders by name; new ones turn up by themselves."""

    def __init__(self, root: Path) -> None:
        require_folder(root)
        self.root = root.resolve()
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._unreadable: list[str] = []
        self._next_search = float("-inf")
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

    def listing(self) -> dict[str, Any]:
        """A line about each run, the newest first, and what cannot be searched."""
        with self._lock:
            self._search()
            briefs = [self._brief(name, path) for name, path in self._found.items()]
            briefs.sort(key=lambda brief: brief["written"], reverse=True)
            return {"runs": briefs, "unreadable": self._unreadable}

    def _brief(self, name: str, path: Path) -> dict[str, Any]:
        mark = tuple(_stamp(path / file) for file in (EVENTS, EXPERIMENT, RESULT))
        known = self._briefs.get(name)
        if known is None or known[0] != mark:
            self._briefs[name] = known = (mark, _brief(name, path))
        return known[1]

    def _search(self) -> None:
        if time.monotonic() < self._next_search:
            return
        began = time.monotonic()
        try:
            found = search(self.root)
        except RunError as error:  # the folder is gone
            found = Found([], [str(error)])
        fresh = {self._name(path): path for path in found.runs}
        # A run that was seen stays listed: its page says that the folder is gone.
        self._found = dict(sorted((self._found | fresh).items()))
        self._unreadable = found.unreadable
        now = time.monotonic()
        self._next_search = now + max(_SEARCH_SECONDS, _SEARCH_SHARE * (now - began))

    def _name(self, path: Path) -> str:
        return path.name if path == self.root else path.relative_to(self.root).as_posix()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _brief(name: str, path: Path) -> dict[str, Any]:
    """What the list says of a run, read from the ends of its files."""
    settings = _quietly(read_toml, path / EXPERIMENT)
    result = _quietly(read_json, path / RESULT)
    last = last_evaluation(path) if not result else None
    written = _stamp(path / EVENTS)
    return {
        "name": name,
        "defense": kind(settings, "defense"),
        "attack": kind(as_faced(settings, _was_attacked(result), is_deployed(path)), "attack"),
        "seed": str(settings.get("seed", "")),
        "rounds": max((event.round for event in last_events(path)), default=0),
        "finished": (path / RESULT).exists(),
        "metrics": late_means(result) or (last.metrics if last else {}),
        "accepted": _accepted_shares(result),
        "written": written[0] // 10**9 if written else 0,
    }


def _accepted_shares(result: Mapping[str, Any]) -> dict[str, float | None]:
    """By group of clients; of unfinished runs nobody has counted."""
    try:
        return {name: finite(found["share"]) for name, found in result["uploads"].items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def _was_attacked(result: Mapping[str, Any]) -> bool:
    """Whether a finished run had uploads that were known to be malicious."""
    try:
        return result["uploads"]["malicious"]["received"] > 0
    except (KeyError, TypeError):
        return False


def _quietly(read: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    """What a file holds; whatever is wrong with it, the run's own page says so."""
    try:
        return read(path)
    except Exception:
        return {}
