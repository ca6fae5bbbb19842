"""One page that explains a set of runs, complete in itself: the answer first, details folded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.presentation.labels import flat_texts, kind
from secureafl.report.answer import answer, expense, silencing, verdict
from secureafl.report.drawing import Picture
from secureafl.report.export import Table
from secureafl.report.figures import clients, holdings, lipschitz, over_rounds, staleness
from secureafl.report.grid import Grid, arrange
from secureafl.report.headline import headlines
from secureafl.report.run_tables import (
    reasons_of,
    table_of_clients,
    table_of_origin,
    table_of_refusals,
    table_of_runs,
)
from secureafl.report.tables import Run, compare, read_runs
from secureafl.report.trust import trust
from secureafl.report.writing import PAGE, fill, save
from secureafl.runs.lanes import Lane, explain_suspicion, lanes, name_suspects
from secureafl.runs.refused import MEANING, refused_clients, tell_refused

# Clients listed of a run, of all runs together, and at least; the dashboard lists them all.
_LANES, _ALL_LANES, _FEWEST_LANES = 25, 750, 5
_DRAWN = 8  # runs; of more, the figures of each would make the page heavy and slow to write
_PICTURES = (lipschitz, trust, staleness, clients, holdings)


class Section(NamedTuple):
    """What the page tells about one run."""

    run: Run
    settings: dict[str, str]
    notes: list[str]
    pictures: list[Picture]
    suspects: str
    refused: str
    explanation: str
    lanes: list[Lane]  # those shown
    clients: Table  # all of them
    refusals: Table
    origin: Table

    @property
    def shown_clients(self) -> Table:
        """Those that the page lists."""
        return self.clients._replace(rows=self.clients.rows[: len(self.lanes)])

    @property
    def tables(self) -> list[Table]:
        """Those that are saved beside the page; the origin is in the run folder already."""
        return [table for table in (self.clients, self.refusals) if table.rows]


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write `index.html`, its figures and its tables into `out`; returns the page's path.

    An earlier report is replaced; nothing is deleted, and the run folders are only read.
    """
    read = read_runs(runs)
    grid = arrange(read)
    pictures = _comparison_pictures(read)
    sections = [_section(run, number, len(read)) for number, run in enumerate(read, 1)]
    values = _values(read, grid, pictures, sections)
    page = fill("page.html", {"reasons": reasons_of, "runs": _runs_of}, values)
    more = [picture for one in sections for picture in one.pictures]
    tables = [values[name].table for name in ("answer", "expense")] + [values["runs"]]
    tables += [table for one in sections for table in one.tables]
    save(out, {PAGE: page}, [*pictures, *more], tables)
    return out / PAGE


def _values(
    runs: Sequence[Run], grid: Grid, pictures: list[Picture], sections: list[Section]
) -> dict[str, Any]:
    verdicts = verdict(grid)
    told = headlines(sorted(runs, key=lambda run: grid.scenes.index(run.scene)))
    return {
        "title": f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}",
        "top": [*(verdicts or told), _at_whose_expense(runs, grid)],
        "sentences": told if verdicts else [],
        "several": len(runs) > 1,
        "answer": answer(grid),
        "expense": expense(grid),
        "meaning": MEANING,
        "runs": table_of_runs(compare(runs)),
        "unfinished": any(not run.finished for run in runs),
        "pictures": pictures,
        "sections": sections,
        "drawn": len(runs) <= _DRAWN,
    }


def _at_whose_expense(runs: Sequence[Run], grid: Grid) -> str:
    if len(runs) > 1:
        return silencing(grid)
    return tell_refused(refused_clients(runs[0].digest), runs[0].deployed)


def _comparison_pictures(runs: Sequence[Run]) -> list[Picture]:
    main = dict.fromkeys(run.metric for run in runs if run.metric)
    metrics = [*main, *({"asr"} - main.keys())]
    return _made(over_rounds(runs, metric) for metric in metrics)


def _made(pictures: Iterable[Picture | None]) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]


def _section(run: Run, number: int, runs: int) -> Section:
    found = lanes(run.digest)
    return Section(
        run=run,
        settings=flat_texts(run.experiment),
        notes=_notes(run.result or {}),
        pictures=_made(draw(run, number) for draw in _PICTURES) if runs <= _DRAWN else [],
        suspects=name_suspects(run.digest, found, run.deployed),
        refused=tell_refused(refused_clients(run.digest), run.deployed),
        explanation=explain_suspicion(run.digest, found, kind(run.experiment, "defense")),
        lanes=found[: max(_FEWEST_LANES, min(_LANES, _ALL_LANES // runs))],
        clients=table_of_clients(run, number, found),
        refusals=table_of_refusals(run, number),
        origin=table_of_origin(run, number),
    )


def _runs_of(marks: str) -> list[tuple[str, int]]:
    """Equal marks in a row, counted: a page of many runs has many thousands of them."""
    return [(mark, len(list(same))) for mark, same in itertools.groupby(marks)]


def _notes(result: Mapping[str, Any]) -> list[str]:
    """Return remarks that concern only some runs: forgotten clients and privacy."""
    notes, spent = [], result.get("privacy")
    if result.get("forgotten"):
        notes.append(
            f"Clients without an upload for long were forgotten {result['forgotten']} times."
        )
    if spent:
        epsilon = spent["epsilon"]
        worth = "no finite epsilon" if epsilon is None else f"epsilon {epsilon:.3g}"
        notes.append(
            f"Privacy of {spent['protects']}: {worth} at delta {spent['delta']:g} for the most "
            f"exposed client (number {spent['client']}, {spent['uploads']} uploads)."
        )
    return notes
