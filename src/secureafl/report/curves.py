"""Figures over a scale, such as the share of malicious clients, with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from secureafl.presentation.style import BLACK, MEANINGS
from secureafl.report.cells import Sheet
from secureafl.report.drawing import (
    FAR,
    Picture,
    Style,
    drawable,
    legend_columns,
    panels,
    render_both,
    slug,
    styles_in_turn,
)
from secureafl.report.summary import shown

_PAPER = {"marker": "*", "color": BLACK, "linestyle": "", "markersize": 10, "fillstyle": "none"}


def over_columns(
    sheets: Sequence[Sheet], metric: str, scale: str, ours: Sequence[str]
) -> Picture | None:
    """A metric over the columns: a panel per sheet, a line per row, a band of ± one std.

    None before anything finished.
    """
    with_metric = [s for s in sheets if any(metric in c.figures for c in s.cells.values())]
    if not with_metric:
        return None
    rows = list(dict.fromkeys(row for sheet in sheets for row in sheet.rows))
    styles = dict(zip(rows, styles_in_turn(), strict=False))
    meaning = f": {MEANINGS[metric]}" if metric in MEANINGS else ""
    title = f"{metric.upper()} over {scale}"
    return Picture(
        f"{slug(metric)}-over-{slug(scale)}.svg",
        title,
        f"{metric.upper()}{meaning}. Lines are means over seeds, bands one standard deviation; "
        f"stars are the paper's figures for {' and '.join(map(shown, ours))}, where it gives any.",
        f"Line chart of {title}: {', '.join(map(shown, rows))}; "
        f"one panel each for {', '.join(sheet.title for sheet in with_metric)}.",
        *render_both(
            0.2 * len(rows) / 2 + 0.4,
            lambda figure: _panels(figure, with_metric, metric, scale, styles, ours),
        ),
    )


def _panels(
    figure: Figure,
    sheets: Sequence[Sheet],
    metric: str,
    scale: str,
    styles: dict[str, Style],
    ours: Sequence[str],
) -> None:
    for axis, sheet in panels(figure, sheets):
        _lines(axis, sheet, metric, styles)
        for row in ours:
            _stars(axis, sheet, metric, row)
        axis.set_title(drawable(sheet.title), loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel(drawable(scale))
        axis.set_ylabel(drawable(metric.upper()))
        axis.set_xticks(_places(sheet), sheet.columns)
    figure.axes[0].set_ylim(bottom=0)  # shared; cut axes exaggerate
    handles = [Line2D([], [], **style._asdict()) for style in styles.values()]
    labels = [drawable(shown(row)) for row in styles]
    figure.legend(handles, labels, loc="outside upper left", ncols=legend_columns(figure, labels))


def _lines(axis: Axes, sheet: Sheet, metric: str, styles: dict[str, Style]) -> None:
    places = _places(sheet)
    for row in sheet.rows:
        found = [sheet.cells[row, column].figures.get(metric) for column in sheet.columns]
        points = [(x, *spread) for x, spread in zip(places, found, strict=True) if spread]
        if not points:
            continue
        x, mean, std = np.clip(np.array(points, dtype=float).T, -FAR, FAR)
        axis.plot(x, mean, markersize=4, linewidth=1.6, **styles[row]._asdict())
        axis.fill_between(x, mean - std, mean + std, color=styles[row].color, alpha=0.15, lw=0)


def _stars(axis: Axes, sheet: Sheet, metric: str, row: str) -> None:
    """Mark the paper's figures."""
    given = [sheet.cells[row, column].paper.get(metric) for column in sheet.columns]
    points = [(x, y) for x, y in zip(_places(sheet), given, strict=True) if y is not None]
    if points:
        axis.plot(*np.array(points).T, **_PAPER)


def _places(sheet: Sheet) -> list[float]:
    """Return the columns' positions: their values or, if they are no numbers, 0, 1, 2 and so on."""
    try:
        return [float(column) for column in sheet.columns]
    except ValueError:
        return [float(i) for i in range(len(sheet.columns))]
