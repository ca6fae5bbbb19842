"""Both sides of the bound over rounds, one panel for each case, as SVG.

Colours are Okabe and Ito's, told apart by colour-blind readers; line styles say the same once more.
Drawn on a Figure object: pyplot and its global figures are never loaded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secureafl.presentation.plotting import our_style
from secureafl.reproduce.theory.findings import Findings, Result

_COLUMNS = 3
_LOOKS = {
    "left": ("#0072B2", "-", "left side: mean squared gradient"),
    "mean": ("#009E73", "--", "right side with the mean of |δ|²"),
    "track": ("#E69F00", "-.", "right side with E_track², the largest |δ|²"),
    "explicit": ("#D55E00", ":", "right side from constants (outside: those of inside)"),
}


def draw(findings: Findings) -> bytes:
    """A line is the mean over seeds, a band all of them."""
    cases = findings.cases
    rows = math.ceil(len(cases) / _COLUMNS)
    with our_style():
        figure = Figure(figsize=(12, 2.9 * rows + 0.6), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axis, case in zip(axes, cases, strict=False):
            results = findings.of(case)
            _panel(axis, results)
            where, step = "outside" if case.inside else "inside", results[0].constants.step
            named = f"{where}: {case.title}\nηL = {step:.3g}, b = {case.malicious}"
            axis.set_title(named, loc="left", fontsize=10, fontweight="bold")
        for axis in axes[len(cases) :]:
            axis.remove()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
        figure.supxlabel("T, rounds counted", fontsize=10)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _panel(axis: Axes, results: Sequence[Result]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.minorticks_off()  # thousands of marks would make the page heavy
    # Seeds may have diverged at different rounds: a line goes as far as all of them.
    last = min(result.length for result in results)
    counts = np.unique(np.geomspace(1, last, 50).round())
    for side, (colour, line, label) in _LOOKS.items():
        curves = np.array([_at(counts, result, side) for result in results])
        if np.isfinite(curves).all():
            axis.plot(counts, curves.mean(axis=0), line, color=colour, linewidth=1.7, label=label)
            low, high = curves.min(axis=0), curves.max(axis=0)
            axis.fill_between(counts, low, high, color=colour, alpha=0.2, linewidth=0)


def _at(counts: np.ndarray, result: Result, side: str) -> np.ndarray:
    """A curve at other values of T; straight lines between, as the axes show them."""
    known, values = np.log(result.counts), np.log(getattr(result.sides, side))
    return np.exp(np.interp(np.log(counts), known, values))
