"""The page of one table or figure of the paper: HTML complete in itself, and Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from secureafl.report.cells import Cell, Sheet, Spread, origin_of
from secureafl.report.curves import over_columns
from secureafl.report.headline import number, spread
from secureafl.report.summary import shown, summaries
from secureafl.report.writing import NOTHING, PAGE, fill, percent, save

MARKDOWN = "index.md"


class Brief(NamedTuple):
    """Everything a page tells."""

    title: str
    command: str
    warnings: Sequence[str]  # what a reader must know before any figure
    notes: Sequence[str]
    seeds: Sequence[int]
    row_name: str
    column_name: str
    sheets: Sequence[Sheet]
    ours: Sequence[str]  # the rows the summary is about
    curves: bool  # whether the columns are a scale
    runs: Sequence[Path]


def write_artefact(brief: Brief, out: Path) -> Path:
    """Write `index.html`, `index.md` and the figures into `out`; returns the page's path."""
    metrics = dict.fromkeys(m for sheet in brief.sheets for m in sheet.metrics)
    drawn = [over_columns(brief.sheets, m, brief.column_name, brief.ours) for m in metrics]
    pictures = [picture for picture in drawn if picture] if brief.curves else []
    values = {
        "brief": brief,
        "origin": origin_of(brief.runs),
        "summaries": summaries(brief.sheets, brief.ours),
        "pictures": pictures,
        "accepted": any(c.honest is not None for s in brief.sheets for c in s.cells.values()),
    }
    filters = {"ours": _ours, "paper": _paper, "shares": _shares, "shown": shown, "plain": _plain}
    pages = {PAGE: "artefact.html", MARKDOWN: "artefact.md"}
    save(out, {file: fill(template, filters, values) for file, template in pages.items()}, pictures)
    return out / PAGE


def _ours(cell: Cell) -> str:
    """Mean and standard deviation of every metric, and how many runs are not in it yet."""
    if not cell.figures:
        return "missing"
    told = " / ".join(_spread(found, cell.finished) for found in cell.figures.values())
    return told if cell.finished == cell.planned else f"{told} ({cell.finished} of {cell.planned})"


def _spread(found: Spread, runs: int) -> str:
    if math.isnan(found.mean):
        return "diverged"
    return spread(found.mean, found.std) if runs > 1 else number(found.mean)


def _paper(cell: Cell) -> str:
    return " / ".join(f"{figure:.2f}" for figure in cell.paper.values()) or NOTHING


def _shares(cell: Cell) -> str:
    return f"{percent(cell.honest)}, {percent(cell.malicious)}"


def _plain(text: str) -> str:
    """Text inside a Markdown table."""
    return text.replace("|", r"\|").replace("\n", " ")
