"""Figures as text, in one way for pages, tables and the terminal."""

from __future__ import annotations

import math

from secureafl.report.cells import Cell, Spread
from secureafl.report.tables import Late

NOTHING = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Three decimals where they say something, else three digits."""
    if value is None or math.isnan(value):
        return "undefined"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def mean_and_deviation(mean: float, deviation: float) -> str:
    """A mean and its standard deviation, which has no more decimals than the mean."""
    tiny = 0 < deviation < 0.001 <= abs(mean) < 1000
    return f"{number(mean)} ± {f'{deviation:.3f}' if tiny else number(deviation)}"


def late_figures(found: Late | None) -> str:
    """A metric over a run's last evaluations; a deviation only if there are several that differ."""
    if found is None or math.isnan(found.mean):
        return NOTHING
    return mean_and_deviation(found.mean, found.std) if found.std else number(found.mean)


def percent(share: float | None) -> str:
    """A share; a dash where there is none."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def spread(found: Spread | None, runs: int) -> str:
    """One figure over `runs` runs: the mean, and of several runs the deviation too."""
    if found is None:
        return NOTHING
    if math.isnan(found.mean):
        return "diverged"
    return mean_and_deviation(found.mean, found.std) if runs > 1 else number(found.mean)


def figures(cell: Cell) -> str:
    """Every metric of a cell, and how many of its runs are in it if some are missing yet."""
    if not cell.figures:
        return "missing"
    told = " / ".join(spread(found, cell.finished) for found in cell.figures.values())
    return told if cell.finished == cell.planned else f"{told} ({cell.finished} of {cell.planned})"


def paper_figures(cell: Cell) -> str:
    """What the paper reports for a cell; a dash where it reports nothing."""
    return " / ".join(f"{figure:.2f}" for figure in cell.paper.values()) or NOTHING


def beside_paper(cell: Cell) -> str:
    """The figures of a cell, with those of the paper in brackets where it has some."""
    return f"{figures(cell)} ({paper_figures(cell)})" if cell.paper else figures(cell)


def shares(cell: Cell) -> str:
    """The accepted shares of honest and of malicious uploads."""
    return f"{percent(cell.honest)}, {percent(cell.malicious)}"


def in_markdown_table(text: str) -> str:
    """Text that leaves the table around it whole."""
    return text.replace("|", r"\|").replace("\n", " ")
