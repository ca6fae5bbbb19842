"""Tables of pages and commands as values, and how they are written: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from secureafl.report.cells import Cell, Spread
from secureafl.report.formatting import (
    NOTHING,
    beside_paper,
    in_markdown_table,
    number,
    percent,
    shares,
)
from secureafl.report.formatting import spread as spread_text

Format = Literal["markdown", "csv", "latex"]
_SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\N{EN DASH}": "--", "…": r"\dots{}", "\N{MULTIPLICATION SIGN}": r"$\times$", "±": r"$\pm$",
} | {character: f"\\{character}" for character in "&%$#_{}"}  # fmt: skip
_DEVIATION = re.compile(r"(-?[\d.,e+-]+) ± ([\d.,e+-]+)")
_NUMBERS = re.compile(r"-?[\d.,e+-]+( ± [\d.,e+-]+)?( %)?|diverged|missing|undefined|" + NOTHING)


class Value(NamedTuple):
    """One cell: a text for readers, and what a CSV has in its place."""

    text: str
    parts: Mapping[str, str | float | None]  # columns of a CSV, by what follows the heading
    best: bool = False  # printed bold


class Table(NamedTuple):
    """A table that can be written in every format."""

    name: str  # of its files
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Value]]


def plain(value: object) -> Value:
    """A text or a number as it is; None is a dash."""
    if value is None or value == "":
        return Value(NOTHING, {"": None})
    if isinstance(value, bool | str):
        return Value(str(value), {"": str(value)})
    if isinstance(value, int):
        return Value(f"{value:,}", {"": value})
    if isinstance(value, float):
        return Value(number(value), {"": value})
    raise TypeError(f"{value!r}: neither a text nor a number")


def share(value: float | None) -> Value:
    """A share: percent for readers, a fraction in a CSV."""
    return Value(percent(value), {"": value})


def over_runs(found: Spread | None, runs: int, note: str = "", best: bool = False) -> Value:
    """A figure over several runs: mean and deviation; the note is for readers."""
    if found is None:
        return plain(None)
    std = found.std if runs > 1 else None
    return Value(spread_text(found, runs) + note, {"mean": found.mean, "std": std}, best)


def figures_of(cell: Cell) -> Value:
    """All figures of a cell by their metrics, and those of the paper."""
    parts: dict[str, str | float | None] = {}
    for metric, found in cell.figures.items():
        std = found.std if cell.finished > 1 else None
        parts |= {f"{metric} mean": found.mean, f"{metric} std": std}
    parts |= {f"{metric} paper": figure for metric, figure in cell.paper.items()}
    return Value(beside_paper(cell), parts or {"": None})


def distances_of(cells: Iterable[Cell]) -> Value:
    """How many cells are the paper's within its deviation, and how far all are on average."""
    found = [(c.reproduces_paper, d) for c in cells if (d := c.distance_to_paper) is not None]
    if not found:
        return plain(None)
    close, mean = sum(near for near, _ in found), statistics.fmean(d for _, d in found)
    text = f"{close} of {len(found)}, {'diverged' if math.isnan(mean) else number(mean)}"
    return Value(text, {"within": close, "cells": len(found), "distance": mean})


def accepted_of(cell: Cell) -> Value:
    """The accepted shares of honest and of malicious uploads."""
    return Value(shares(cell), {"honest": cell.honest, "malicious": cell.malicious})


def texts(name: str, title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of plain texts and numbers."""
    return Table(name, title, head, [[plain(value) for value in row] for row in rows])


def write_table(table: Table, format_: Format) -> str:
    """The table as text of this format."""
    return _WRITERS[format_](table)


def as_markdown(table: Table) -> str:
    """A table as GitHub and most others read it."""
    lines = [table.head, *([value.text for value in row] for row in table.rows)]
    first, *others = [f"| {' | '.join(map(in_markdown_table, line))} |" for line in lines]
    return "\n".join([first, "|---" * len(table.head) + "|", *others, ""])


def as_csv(table: Table) -> str:
    """A table for programs: numbers in full, a column each for mean and deviation."""
    columns = [[row[i].parts for row in table.rows] for i in range(len(table.head))]
    keys = [list(dict.fromkeys(k for parts in column for k in parts)) or [""] for column in columns]
    keys = [[k for k in own if k or len(own) == 1] for own in keys]  # "": nothing is there
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    headed = zip(table.head, keys, strict=True)
    writer.writerow([f"{name} {key}".strip() for name, own in headed for key in own])
    for row in table.rows:
        pairs = zip(row, keys, strict=True)
        writer.writerow([value.parts.get(key) for value, own in pairs for key in own])
    return out.getvalue()


def as_latex(table: Table) -> str:
    """A table for a paper, with the rules of the package booktabs."""
    lines = [[_latex_cell(value) for value in row] for row in table.rows]
    columns = "".join(_alignment(table.rows, i) for i in range(len(table.head)))
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(table.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_line(map(latex_text, table.head)),
            r"\midrule",
            *map(_latex_line, lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is; a deviation as a formula."""
    parts, end = [], 0
    for found in _DEVIATION.finditer(text):
        parts += [_escaped(text[end : found.start()]), rf"${found[1]} \pm {found[2]}$"]
        end = found.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text.replace("\n", " "))


def _latex_cell(value: Value) -> str:
    # A formula keeps its own weight inside \textbf.
    text = latex_text(value.text)
    return rf"\textbf{{\boldmath {text}}}" if value.best else text


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _alignment(rows: Sequence[Sequence[Value]], column: int) -> str:
    """Numbers to the right, texts to the left."""
    numbers = rows and all(_NUMBERS.fullmatch(row[column].text) for row in rows)
    return "r" if numbers else "l"


_WRITERS: dict[Format, Callable[[Table], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
}
