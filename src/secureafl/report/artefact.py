"""The page of one table or figure of the paper: HTML complete in itself, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from secureafl.report.cells import Sheet
from secureafl.report.curves import over_columns
from secureafl.report.drawing import slug
from secureafl.report.export import Table, accepted_of, figures_of, plain
from secureafl.report.formatting import figures, in_markdown_table, paper_figures, shares
from secureafl.report.summary import shown, summaries
from secureafl.report.writing import PAGE, fill, save
from secureafl.runs.origin import origin_of

MARKDOWN = "index.md"


class Judged(NamedTuple):
    """What the paper's text says of a figure, and what these runs say of that."""

    text: str
    verdict: Literal["holds", "does not hold", "not decided"]
    because: str


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
    claims: Sequence[Judged] = ()


def write_artefact(brief: Brief, out: Path) -> Path:
    """Write `index.html`, `index.md` and the figures into `out`; returns the page's path."""
    metrics = dict.fromkeys(m for sheet in brief.sheets for m in sheet.metrics)
    drawn = [over_columns(brief.sheets, m, brief.column_name, brief.ours) for m in metrics]
    pictures = [picture for picture in drawn if picture] if brief.curves else []
    tables = {sheet.title: _table(brief, sheet) for sheet in brief.sheets}
    accepted = {sheet.title: _accepted(brief, sheet) for sheet in brief.sheets}
    values = {
        "brief": brief,
        "tables": tables,
        "origin": origin_of(brief.runs),
        "summaries": summaries(brief.sheets, brief.ours),
        "pictures": pictures,
        "accepted": accepted
        if any(c.honest is not None for s in brief.sheets for c in s.cells.values())
        else {},
    }
    filters = {"figures": figures, "paper": paper_figures, "shares": shares}
    filters |= {"shown": shown, "plain": in_markdown_table}
    pages = {PAGE: "artefact.html", MARKDOWN: "artefact.md"}
    made = {file: fill(template, filters, values) for file, template in pages.items()}
    save(out, made, pictures, [*tables.values(), *values["accepted"].values()])
    return out / PAGE


def _table(brief: Brief, sheet: Sheet) -> Table:
    metrics = " / ".join(map(str.upper, sheet.metrics))
    rows = [
        [plain(shown(row)), *(figures_of(sheet.cells[row, c]) for c in sheet.columns)]
        for row in sheet.rows
    ]
    title = f"{sheet.title}: {metrics}" if metrics else sheet.title
    return Table(slug(sheet.title), title, [brief.row_name, *sheet.columns], rows)


def _accepted(brief: Brief, sheet: Sheet) -> Table:
    rows = [
        [plain(shown(row)), *(accepted_of(sheet.cells[row, c]) for c in sheet.columns)]
        for row in sheet.rows
    ]
    title = f"Accepted uploads, {sheet.title}: honest, malicious"
    return Table(f"accepted-{slug(sheet.title)}", title, [brief.row_name, *sheet.columns], rows)
