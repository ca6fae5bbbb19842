"""Several searches that share one queue of runs, so that a GPU is kept busy to the end.

One search waits at the end of each stage for its slowest run. Side by side each goes on as soon as
its own runs are done. They are begun one after the other, a few at a time, so that those begun
first end first; each ends with the result that it has alone.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from secureafl.core.errors import RunError
from secureafl.experiment import Experiment, to_mapping
from secureafl.redteam.plan import Plan
from secureafl.redteam.search import Stage, stages
from secureafl.redteam.space import find_space
from secureafl.runs.layout import RESULT
from secureafl.sweep.cells import Update


class SideBySide:
    """Searches that advance as their runs end."""

    def __init__(self, plans: Mapping[Path, Plan], ahead: int) -> None:
        """The next search is begun when fewer than `ahead` runs wait for their turn.

        Raise if a folder is in use or a search makes no sense; then nothing has run.
        """
        for plan in plans.values():  # before the first folder is made
            find_space(plan.base.task, plan.against == "asr")
        self._searches = {out: stages(plan, out) for out, plan in plans.items()}
        self._to_begin = deque((out, next(one)) for out, one in self._searches.items())
        folders = [stage.folder.absolute() for _, stage in self._to_begin]
        self.folder = Path(os.path.commonpath(folders))
        self.cells: dict[str, Experiment] = {}  # runs to make, in `folder`, as far as known
        self.failures: list[str] = []  # of searches that could not go on
        self._ahead, self._titles = ahead, list[str]()
        self._seen, self._ended = set[str](), set[str]()
        self._left: dict[Path, set[str]] = {}  # runs that a search waits for
        # Of runs that are the same, as those without an attack, one is made and copied.
        self._made_as: dict[str, str] = {}  # by experiment
        self._wanted: dict[str, list[tuple[Path, str]]] = {}  # by that: who wants it, and as what
        self._begin_more()

    def tell(self, update: Update) -> None:
        """Take in an update of a run; its search may go on, and there may be more `cells`."""
        self._seen.add(update.cell)
        if update.state in ("finished", "failed"):
            self._settle(update.cell)
        self._begin_more()

    def begun(self) -> list[str]:
        """The titles of the stages that were begun since the last time."""
        titles, self._titles = self._titles, []
        return titles

    def _begin_more(self) -> None:
        while self._to_begin and len(self.cells) - len(self._seen) < self._ahead:
            self._submit(*self._to_begin.popleft())

    def _submit(self, search: Path, stage: Stage) -> None:
        """Put the runs of a stage into the queue, but for those that are there already."""
        several = len(self._searches) > 1
        self._titles.append(f"{search.name}: {stage.title}" if several else stage.title)
        names = {self._name(stage.folder / run): cell for run, cell in stage.cells.items()}
        self._left[search] = set(names)
        # Attacks that carry out the defence take longest; begun last, all would wait for them.
        for name in sorted(names, key=lambda name: names[name].attack.knows != "defense"):
            maker = self._made_as.setdefault(repr(to_mapping(names[name])), name)
            self._wanted.setdefault(maker, []).append((search, name))
            if maker == name:
                self.cells[name] = names[name]
        for maker in [*self._wanted]:
            if maker in self._ended:
                self._settle(maker)

    def _settle(self, maker: str) -> None:
        """A run has ended: give it to all who want it, and let those go on who wait no longer."""
        self._ended.add(maker)
        for search, name in self._wanted.pop(maker, []):
            _copy(self.folder / maker, self.folder / name)
            self._left[search].discard(name)
            if not self._left[search]:
                self._advance(search)

    def _advance(self, search: Path) -> None:
        try:
            stage = next(self._searches[search], None)
        except RunError as error:
            self.failures.append(str(error))
            return
        if stage:
            self._submit(search, stage)

    def _name(self, run: Path) -> str:
        return run.absolute().relative_to(self.folder).as_posix()


def _copy(made: Path, wanted: Path) -> None:
    """Copy a finished run to where the same run is wanted, at once or not at all."""
    if not (made / RESULT).is_file() or (wanted / RESULT).is_file():
        return
    unfinished = wanted.with_name(f".{wanted.name}")
    for leftover in (unfinished, wanted):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(made, unfinished)
    unfinished.rename(wanted)
