"""Cells of a table of the paper: our mean and spread over seeds, and the paper's figure beside it.

A cell is read from `result.json` of its runs alone, so a page can be made again from results whose
events were not kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.paper.tables import TOLERANCE
from secureafl.runs.layout import RESULT, read_json

_ROUNDING = 1e-9
_REMEDY = "restore the file, or delete the folder, and the same command makes the run again"

BETTER, WITHIN, WORSE = "better", "within", "worse"
ALONE, MISSING = "alone", "missing"  # no figure of the paper; no finished run


class Spread(NamedTuple):
    """One figure over several runs; NaN if any of them has none."""

    mean: float
    std: float  # of a sample; 0 for one run


class Cell(NamedTuple):
    """One cell of a table: the runs of one row and column, over their seeds."""

    figures: Mapping[str, Spread]  # by metric, the main one first; empty if nothing finished
    paper: Mapping[str, float]  # by metric; empty if the paper gives no figure
    finished: int  # runs
    planned: int
    honest: float | None = None  # accepted share
    malicious: float | None = None
    steps: float | None = None  # of the model, mean over the runs

    @property
    def main(self) -> float:
        """The main figure; infinite if the cell is missing or diverged."""
        mean = next((spread.mean for spread in self.figures.values()), math.nan)
        return math.inf if math.isnan(mean) else mean

    @property
    def comparison(self) -> str:
        """How the cell compares with the paper, in the metric that compares worst."""
        if not self.figures:
            return MISSING
        found = [compare_with_paper(self.figures[m].mean, p) for m, p in self._compared()]
        return max(found, key=(BETTER, WITHIN, WORSE).index, default=ALONE)

    @property
    def at_or_below_paper(self) -> bool:
        """Whether every metric is at or below the paper's, to the two decimals it gives."""
        compared = self._compared()
        return bool(compared) and all(round(self.figures[m].mean, 2) <= p for m, p in compared)

    @property
    def reproduces_paper(self) -> bool:
        """Whether every metric is neither better nor worse than the paper's."""
        compared = self._compared()
        found = [compare_with_paper(self.figures[m].mean, p) for m, p in compared]
        return bool(found) and set(found) == {WITHIN}

    @property
    def distance_to_paper(self) -> float | None:
        """How far the main figure is from the paper's; NaN if it diverged, None if one lacks."""
        compared = self._compared()
        return abs(self.figures[compared[0][0]].mean - compared[0][1]) if compared else None

    def _compared(self) -> list[tuple[str, float]]:
        return [(m, p) for m, p in self.paper.items() if m in self.figures]


class Sheet(NamedTuple):
    """One table: rows and columns by name; a cell for every pair that is wanted."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]

    @property
    def metrics(self) -> list[str]:
        """All metrics of the table, the main one first."""
        cells = self.cells.values()
        return list(dict.fromkeys(m for cell in cells for m in [*cell.figures, *cell.paper]))


def compare_with_paper(ours: float, paper: float) -> str:
    """How a figure compares with the paper's; lower is better."""
    if math.isnan(ours) or ours > paper + TOLERANCE + _ROUNDING:
        return WORSE
    return BETTER if ours < paper - TOLERANCE - _ROUNDING else WITHIN


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and standard deviation of one figure over runs."""
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan)
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


class _Result(NamedTuple):
    """What a cell takes from one run."""

    late: Mapping[str, float]  # by metric; NaN if it diverged
    honest: float | None
    malicious: float | None
    steps: float | None


def cell_of(runs: Sequence[Path], paper: Mapping[str, float]) -> Cell:
    """Make a cell of its runs, one per seed; those without a result are counted as missing."""
    found = {run: _result_of(run) for run in runs if (run / RESULT).is_file()}
    results = list(found.values())
    metrics = list(results[0].late) if results else []
    for run, result in found.items():
        if [*result.late] != metrics:
            told = f"has {', '.join(result.late)}, another seed {', '.join(metrics)}"
            raise RunError(f"{run}: damaged {RESULT} ({told}); {_REMEDY}")
    return Cell(
        {m: spread([result.late[m] for result in results]) for m in metrics},
        paper,
        len(results),
        len(runs),
        _mean(result.honest for result in results),
        _mean(result.malicious for result in results),
        _mean(result.steps for result in results),
    )


def _result_of(run: Path) -> _Result:
    try:
        result = read_json(run / RESULT)
        late = {m: _number(figures["late_mean"]) for m, figures in result["metrics"].items()}
        uploads = result["uploads"]
        return _Result(
            {m: math.nan if value is None else value for m, value in late.items()},
            _number(uploads["honest"]["share"]),
            _number(uploads["malicious"]["share"]),
            _number(result.get("steps")),
        )
    except RunError as error:
        raise RunError(f"{error}; {_REMEDY}") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RunError(f"{run}: damaged {RESULT} ({what}); {_REMEDY}") from error


def _number(value: Any) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{value} is no figure")
    return None if value is None else float(value)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values there are."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
