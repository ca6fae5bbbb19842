"""Runs by defence and attack: those that differ in their seed only are taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from secureafl.report.cells import Spread, spread
from secureafl.report.tables import Run
from secureafl.runs.refused import refused_clients

NO_ATTACK = "no attack"  # the first column


class Counted(NamedTuple):
    """How many clients of how many, over all seeds."""

    clients: int
    of: int


class Group(NamedTuple):
    """The runs of one defence under one attack."""

    runs: Sequence[Run]

    @property
    def used(self) -> Sequence[Run]:
        """The finished ones; all of them while there are none."""
        return [run for run in self.runs if run.finished] or self.runs

    @property
    def note(self) -> str:
        """What a reader must know of the group's figures."""
        finished = sum(run.finished for run in self.runs)
        if not finished:
            return " (unfinished)"
        return f" ({finished} of {len(self.runs)})" if finished < len(self.runs) else ""

    def figure(self, metric: str) -> Spread | None:
        """A metric over the runs; None where none of them has it."""
        found = [r.summary.metrics[metric].mean for r in self.used if metric in r.summary.metrics]
        return spread(found) if found else None

    @property
    def caught(self) -> Counted:
        """Malicious clients refused more often than not."""
        found = [refused_clients(run.digest) for run in self.runs]
        return Counted(sum(len(one.caught) for one in found), sum(one.malicious for one in found))

    @property
    def silenced(self) -> Counted:
        """The other clients refused more often than not."""
        found = [refused_clients(run.digest) for run in self.runs]
        return Counted(sum(len(one.silenced) for one in found), sum(one.honest for one in found))


class Grid(NamedTuple):
    """Defences by attacks; not every pair need have runs."""

    variants: Sequence[str]  # whose highest figure is lowest first
    scenes: Sequence[str]
    groups: dict[tuple[str, str], Group]

    @property
    def deployed(self) -> bool:
        """Whether some of the clients are real ones, of whom nobody knows which are honest."""
        return any(run.deployed for group in self.groups.values() for run in group.runs)

    def metrics(self, scene: str) -> list[str]:
        """The main metric under an attack, and the attack success rate where there is one."""
        runs = [r for (_, own), group in self.groups.items() if own == scene for r in group.runs]
        main = dict.fromkeys(run.metric for run in runs if run.metric)
        asr = ["asr"] if any("asr" in run.summary.metrics for run in runs) else []
        return list(dict.fromkeys([*main, *asr]))

    def highest(self, variant: str) -> float:
        """The highest main figure of a defence; infinite if one diverged or is missing."""
        found = []
        for scene in self.scenes:
            group = self.groups.get((variant, scene))
            figure = group.figure(group.runs[0].metric or "") if group else None
            mean = figure.mean if figure else math.nan
            found.append(math.inf if math.isnan(mean) else mean)
        return max(found)


def arrange(runs: Iterable[Run]) -> Grid:
    """Take the runs of each defence under each attack together."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.variant, run.scene), []).append(run)
    variants, scenes = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    scenes.sort(key=lambda scene: not scene.startswith(NO_ATTACK))
    grid = Grid(variants, scenes, {key: Group(found) for key, found in groups.items()})
    return grid._replace(variants=sorted(variants, key=grid.highest))
