"""The page of the theory check, as Markdown and as one HTML file complete in itself."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from secureafl.core.errors import RunError
from secureafl.core.files import put_file
from secureafl.reproduce.theory.findings import Findings, Result

FIGURES, PICTURE, MARKDOWN, PAGE = "theory.json", "theory.svg", "README.md", "index.html"
TITLE = "Theorem 1, checked"
_ALT = "Both sides of the bound over rounds, a panel for each case, on logarithmic axes."


class Table(NamedTuple):
    """One table and what it shows."""

    title: str
    text: str
    headings: list[str]
    rows: list[list[str]]


class Column(NamedTuple):
    """A figure of each result; a cell shows its range over the seeds."""

    heading: str
    figure: Callable[[Result], float]


_CONSTANTS = (
    Column("L", lambda r: r.constants.smoothness),
    Column("zeta", lambda r: r.constants.heterogeneity),
    Column("sigma", lambda r: r.constants.noise),
    Column("epsilon_est", lambda r: r.constants.estimation),
    Column("G", lambda r: r.constants.largest),
    Column("C_med", lambda r: r.constants.median_constant),
    Column("F(w^0) - F*", lambda r: r.constants.gap),
    Column("F*", lambda r: r.constants.minimum),
)
_INSIDE = (
    Column("E_track² measured", lambda r: r.tracking),
    Column("its bound from constants", lambda r: r.constants.tracking_bound),
    Column("left side", lambda r: r.end.left),
    Column("right, mean delta²", lambda r: r.end.mean),
    Column("right, E_track²", lambda r: r.end.track),
    Column("right, constants", lambda r: r.end.explicit),
    Column("left / right (E_track²), at its closest", lambda r: r.worst.track),
)
_COROLLARY = (
    Column("T", lambda r: r.length),
    Column("eta sqrt(T) L", lambda r: r.constants.step * math.sqrt(r.length)),
    Column("left side", lambda r: r.end.left),
    Column("4 (F(w^0) - F*) / (eta T)", lambda r: r.end.track - 4 * r.tracking),
    Column("4 E_track²", lambda r: 4 * r.tracking),
)
_OUTSIDE = (
    Column("left side", lambda r: r.end.left),
    Column("promised", lambda r: r.end.explicit),
    Column("right, E_track² as it became", lambda r: r.end.track),
    Column("left / right (E_track²), at its closest", lambda r: r.worst.track),
)


def tables(findings: Findings) -> list[Table]:
    """What the page shows beside the picture."""
    inside, outside = (
        [findings.of(case) for case in findings.cases if bool(case.inside) == out]
        for out in (False, True)
    )
    return [
        Table(
            "Inside the conditions: both sides over the whole run",
            "Ranges are over the seeds. 'Holds' counts the seeds in which the bound holds at every "
            "T with each of its three right sides, and every link of the proof in every round.",
            ["case", "eta L", "b", *(c.heading for c in _INSIDE), "holds"],
            [[*_case(r), *_cells(_INSIDE, r), _count(r, lambda x: all(x.holds))] for r in inside],
        ),
        Table(
            "The constants",
            "L, zeta, sigma and F* are exact; epsilon_est and G are the largest values of the run.",
            ["case", "eta L", "b", *(c.heading for c in _CONSTANTS)],
            [[*_case(r), *_cells(_CONSTANTS, r)] for r in inside],
        ),
        _corollary(inside),
        Table(
            "Outside the conditions",
            "'Promised' is the right side from constants with the epsilon_est, G and C_med that "
            "the same seed had inside: the theorem takes these for given. The last two columns "
            "count the seeds in which the left side stays below a right side at every T.",
            [
                *("case", "eta L", "b", "diverged"),
                *(c.heading for c in _OUTSIDE),
                *("below promised", "below that with E_track²"),
            ],
            [
                [
                    *_case(r),
                    _count(r, lambda x: x.diverged),
                    *_cells(_OUTSIDE, r),
                    _count(r, lambda x: x.holds.explicit),
                    _count(r, lambda x: x.holds.theorem),
                ]
                for r in outside
            ],
        ),
    ]


def _corollary(inside: Sequence[list[Result]]) -> Table:
    horizon = [results for results in inside if results[0].case.horizon]
    return Table(
        "The Corollary: the more rounds, the smaller the step",
        "With eta = c / sqrt(T) the first term of the right side falls as 1 / sqrt(T); the second "
        "does not contain T. The rounds before all clients are known count for the step alone.",
        ["case", "eta L", "b", *(c.heading for c in _COROLLARY)],
        [[*_case(results), *_cells(_COROLLARY, results)] for results in horizon],
    )


def headline(findings: Findings) -> str:
    """Sum the result up in a sentence."""
    inside = [result for result in findings.results if not result.case.inside]
    good = sum(all(result.holds) for result in inside)
    verb = "holds" if findings.kept else "is BROKEN: it holds"
    return f"Inside its conditions the bound {verb} in {good} of {len(inside)} runs."


def write(out: Path, findings: Findings, report: dict[str, Any], picture: bytes) -> None:
    """The figures, the picture and both pages; earlier ones are replaced."""
    shown = tables(findings)
    facts = {key: report[key] for key in ("command", "date", "hardware", "versions")}
    facts |= {"seeds": ", ".join(map(str, findings.seeds)), "rounds": f"{report['rounds']:,}"}
    files = {
        FIGURES: json.dumps(report, separators=(",", ":")).encode() + b"\n",
        PICTURE: picture,
        MARKDOWN: _markdown(headline(findings), facts, shown).encode(),
        PAGE: _html(headline(findings), facts, shown, picture).encode(),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            put_file(out / name, content)
    except OSError as error:
        remedy = "choose another folder (out)"
        raise RunError(f"{out}: cannot be written ({error.strerror}); {remedy}") from error


def _markdown(summary: str, facts: dict[str, str], shown: Sequence[Table]) -> str:
    lines = [f"# {TITLE}", "", f"**{summary}**", ""]
    lines += [f"- {name}: {fact}" for name, fact in facts.items()]
    lines += ["", f"![{_ALT}]({PICTURE})", ""]
    lines += ["A line is the mean over the seeds, a band all of them.", ""]
    for table in shown:
        lines += [f"## {table.title}", "", table.text, ""]
        lines += [_line(table.headings), _line(["---"] * len(table.headings))]
        lines += [*map(_line, table.rows), ""]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _html(summary: str, facts: dict[str, str], shown: Sequence[Table], picture: bytes) -> str:
    source = (
        resources.files("secureafl.reproduce.theory")
        .joinpath("page.html")
        .read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    # As an image an SVG can run no script.
    uri = "data:image/svg+xml;base64," + base64.b64encode(picture).decode()
    return environment.from_string(source).render(
        title=TITLE, summary=summary, facts=facts, tables=shown, picture=uri, alt=_ALT
    )


def _case(results: Sequence[Result]) -> list[str]:
    case = results[0].case
    return [case.title, f"{results[0].constants.step:.3g}", str(case.malicious)]


def _cells(columns: Iterable[Column], results: Sequence[Result]) -> list[str]:
    return [_range([column.figure(result) for result in results]) for column in columns]


def _range(values: Sequence[float]) -> str:
    low, high = (_number(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    """Write a number with three significant digits."""
    if 1e-3 <= abs(value) < 1e5 or value == 0:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.1e}"


def _count(results: Sequence[Result], holds: Callable[[Result], bool]) -> str:
    return f"{sum(map(holds, results))} of {len(results)}"
