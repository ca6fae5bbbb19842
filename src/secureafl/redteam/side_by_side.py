"""Several searches that share one queue of runs, so that a GPU is kept busy to the end.

One search waits at the end of each stage for its slowest run. Side by side each goes on as soon as
its own runs are done. They are begun one after the other, a few at a time, so that those begun
first end first; each ends with the result that it has alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from secureafl.core.errors import SecureAflError
from secureafl.redteam.plan import Plan
from secureafl.redteam.search import Stage, stages
from secureafl.redteam.space import find_space
from secureafl.sweep.cells import Update
from secureafl.sweep.once import MadeOnce


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
        self._runs = MadeOnce(stage.folder for _, stage in self._to_begin)
        self.folder, self.cells = self._runs.folder, self._runs.cells  # runs to make, so far
        self.failures: list[str] = []  # of searches that could not go on
        self._ahead, self._titles = ahead, list[str]()
        self._seen = set[str]()
        self._search_of: dict[Path, Path] = {}  # by the folder of its runs
        self._left: dict[Path, set[Path]] = {}  # runs that a search waits for
        self._begin_more()

    def tell(self, update: Update) -> None:
        """Take in an update of a run; its search may go on, and there may be more `cells`."""
        self._seen.add(update.cell)
        if update.state in ("finished", "failed"):
            self._settle(self._runs.end(update.cell))
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
        runs = {stage.folder / name: cell for name, cell in stage.cells.items()}
        self._search_of[stage.folder], self._left[search] = search, set(runs)
        # Attacks that carry out the defence take longest; begun last, all would wait for them.
        for run in sorted(runs, key=lambda run: runs[run].attack.knows != "defense"):
            self._runs.want(run, runs[run])
        self._settle(self._runs.ended())

    def _settle(self, ended: Iterable[Path]) -> None:
        """Runs have ended: let those searches go on who wait no longer."""
        for run in ended:
            search = self._search_of[run.parent]
            self._left[search].discard(run)
            if not self._left[search]:
                self._advance(search)

    def _advance(self, search: Path) -> None:
        try:
            stage = next(self._searches[search], None)
        except SecureAflError as error:
            self.failures.append(str(error))
            return
        if stage:
            self._submit(search, stage)
