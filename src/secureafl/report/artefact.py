"""The page of one table or figure of the paper: HTML complete in itself, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from secureafl.report.cells import Sheet
from secureafl.report.curves import over_columns
from secureafl.report.formatting import figures, in_markdown_table, paper_figures, shares
from secureafl.report.summary import shown, summaries
from secureafl.report.writing import PAGE, fill, save
from secureafl.runs.origin import origin_of

MARKDOWN = "index.md"


class Brief(NamedTuple):
    """All that a page of the paper's table or figure is made of."""

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
    filters = {"figures": figures, "paper": paper_figures, "shares": shares}
    filters |= {"shown": shown, "plain": in_markdown_table}
    pages = {PAGE: "artefact.html", MARKDOWN: "artefact.md"}
    save(out, {file: fill(template, filters, values) for file, template in pages.items()}, pictures)
    return out / PAGE
