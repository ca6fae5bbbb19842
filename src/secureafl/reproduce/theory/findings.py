"""All cases with all seeds, and the file their figures are kept in."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from secureafl import __version__
from secureafl.reproduce.theory.bound import (
    Constants,
    Holds,
    Sides,
    check,
    constants_of,
    promised,
    sides_of,
)
from secureafl.reproduce.theory.cases import Case, Scope
from secureafl.reproduce.theory.measure import Run, measure

SCHEMA = 1
_KEPT = 60  # values of T that curves are kept at


class Result(NamedTuple):
    """One case with one seed."""

    case: Case
    seed: int
    skipped: int  # rounds before those that count
    length: int  # rounds that count
    diverged: bool
    constants: Constants
    tracking: float  # the largest |delta|^2
    holds: Holds
    worst: Sides[float]  # the left side over each right one, at the T where that is largest
    end: Sides[float]  # both sides over the whole run
    counts: list[int]  # the values of T that follow
    sides: Sides[list[float]]


class Ahead(NamedTuple):
    """The case and seed that run next."""

    number: int  # from 1
    total: int
    name: str


class Findings:
    """The results of all cases and seeds."""

    def __init__(self, scope: Scope, seeds: Sequence[int]) -> None:
        self.scope, self.seeds = scope, seeds
        self.results: list[Result] = []
        self._constants: dict[tuple[str, int], Constants] = {}

    def gather(self, cases: Sequence[Case]) -> Iterator[Ahead]:
        """Run everything, and say before each run what comes."""
        total = len(cases) * len(self.seeds)
        for number, (case, seed) in enumerate(((c, s) for c in cases for s in self.seeds), 1):
            yield Ahead(number, total, f"{case.name}, seed {seed}")
            run = measure(self.scope.experiment(case, seed))
            constants = constants_of(run)
            self._constants[case.name, seed] = constants
            if case.inside:
                constants = promised(constants, self._constants[case.inside, seed])
            self.results.append(result_of(case, seed, run, constants))

    def of(self, case: Case) -> list[Result]:
        """The results of a case, by seed."""
        return [result for result in self.results if result.case == case]

    @property
    def cases(self) -> list[Case]:
        """The cases that have results."""
        return list(dict.fromkeys(result.case for result in self.results))

    def report(self, command: str) -> dict[str, Any]:
        """The content of theory.json."""
        return {
            "schema": SCHEMA,
            "command": command,
            **provenance(),
            "clients": self.scope.clients,
            "rounds": self.scope.rounds,
            "seeds": list(self.seeds),
            "results": [_as_json(result) for result in self.results],
        }

    @property
    def kept(self) -> bool:
        """Whether the bound and every link of its proof hold in all runs inside the conditions."""
        return all(all(result.holds) for result in self.results if not result.case.inside)


def provenance() -> dict[str, str]:
    """Return when and where the cases were run."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": f"{os.cpu_count()} cores {platform.machine()}",
        "versions": f"secureafl {__version__}, torch {torch.__version__}, NumPy {np.__version__}",
    }


def result_of(case: Case, seed: int, run: Run, constants: Constants) -> Result:
    """Return what is kept of a run."""
    sides = sides_of(run, constants)
    length = len(sides.left)
    counts = np.unique(np.geomspace(1, length, _KEPT).round().astype(int))
    return Result(
        case,
        seed,
        run.skipped,
        length,
        run.diverged,
        constants,
        float(run.rounds.tracking.max()),
        check(run, constants),
        Sides(*(float((sides.left / right).max()) for right in sides)),
        Sides(*(float(side[-1]) for side in sides)),
        counts.tolist(),
        Sides(*(side[counts - 1].tolist() for side in sides)),
    )


def _as_json(result: Result) -> dict[str, Any]:
    case, constants = result.case, result.constants
    known = constants._asdict() | {
        "median_constant": constants.median_constant,
        "tracking_bound": constants.tracking_bound,
    }
    return {
        "case": case.name,
        "title": case.title,
        "inside": not case.inside,
        "compared_with": case.inside or None,
        "step_times_smoothness": _short(constants.step),
        "malicious": case.malicious,
        "seed": result.seed,
        "skipped": result.skipped,
        "length": result.length,
        "diverged": result.diverged,
        "constants": {k: _short(v) for k, v in known.items()},
        "tracking": _short(result.tracking),
        "holds": result.holds._asdict(),
        "worst_ratio": {k: _short(v) for k, v in result.worst._asdict().items()},
        "counts": result.counts,
        "sides": {k: [_short(x) for x in v] for k, v in result.sides._asdict().items()},
    }


def _short(value: float) -> float | None:
    """Round to six digits; None where JSON has no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
