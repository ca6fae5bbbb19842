"""One page that explains a set of runs, complete in itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from secureafl.presentation.labels import as_text, flat_texts, kind
from secureafl.report.drawing import Picture
from secureafl.report.figures import clients, holdings, lipschitz, over_rounds, staleness
from secureafl.report.formatting import late_figures
from secureafl.report.headline import headlines
from secureafl.report.tables import Run, compare, read_runs
from secureafl.report.trust import trust
from secureafl.report.writing import PAGE, fill, save
from secureafl.runs.lanes import Lane, explain_suspicion, lanes, name_suspects

_LANES = 25  # clients listed; the dashboard lists them all
_PICTURES = (lipschitz, trust, staleness, clients, holdings)


class Refusals(NamedTuple):
    """How many uploads were refused for one reason."""

    reason: str
    honest: int
    malicious: int


class Section(NamedTuple):
    """What the page tells about one run."""

    run: Run
    settings: dict[str, str]
    refusals: list[Refusals]
    notes: list[str]
    facts: dict[str, str]
    sessions: list[dict[str, str]]
    session_keys: list[str]
    pictures: list[Picture]
    suspects: str
    explanation: str
    lanes: list[Lane]  # those shown, of `clients`
    clients: int


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write `index.html` and its figures into `out`; returns the page's path.

    An earlier report is replaced; nothing is deleted, and the run folders are only read.
    """
    read = read_runs(runs)
    pictures = _comparison_pictures(read)
    sections = [_section(run, number) for number, run in enumerate(read, 1)]
    page = _render(read, pictures, sections)
    more = [picture for one in sections for picture in one.pictures]
    save(out, {PAGE: page}, [*pictures, *more])
    return out / PAGE


def _comparison_pictures(runs: Sequence[Run]) -> list[Picture]:
    main = dict.fromkeys(run.metric for run in runs if run.metric)
    metrics = [*main, *({"asr"} - main.keys())]
    return _made(over_rounds(runs, metric) for metric in metrics)


def _made(pictures: Iterable[Picture | None]) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]


def _section(run: Run, number: int) -> Section:
    sessions = run.provenance.get("sessions", [])
    told = [flat_texts(one) for one in sessions if isinstance(one, Mapping)]
    found = lanes(run.digest)
    return Section(
        run=run,
        settings=flat_texts(run.experiment),
        refusals=_refusals(run),
        notes=_notes(run.result or {}),
        facts={k: as_text(v) for k, v in run.provenance.items() if k != "sessions"},
        sessions=told,
        session_keys=list(dict.fromkeys(key for one in told for key in one)),
        pictures=_made(draw(run, number) for draw in _PICTURES),
        suspects=name_suspects(run.digest, found),
        explanation=explain_suspicion(run.digest, found, kind(run.experiment, "defense")),
        lanes=found[:_LANES],
        clients=len(found),
    )


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


def _refusals(run: Run) -> list[Refusals]:
    """Refused uploads by reason, the most frequent first."""
    arrivals = run.arrivals
    refused = ~arrivals.accepted
    honest, malicious = (
        np.bincount(arrivals.reason[refused & group], minlength=len(arrivals.reasons))
        for group in (~arrivals.malicious, arrivals.malicious)
    )
    found = [
        Refusals(reason or "none given", int(good), int(malicious))
        for reason, good, malicious in zip(arrivals.reasons, honest, malicious, strict=True)
        if good + malicious
    ]
    return sorted(found, key=lambda one: -(one.honest + one.malicious))


def _render(runs: Sequence[Run], pictures: list[Picture], sections: list[Section]) -> str:
    rows = compare(runs)
    names = {row.metric for row in rows if row.metric}
    values = {
        "headlines": headlines(runs),
        "rows": rows,
        "metric": names.pop().upper() if len(names) == 1 else "",
        "with_asr": any(row.asr for row in rows),
        "unfinished": any(not row.finished for row in rows),
        "pictures": pictures,
        "sections": sections,
    }
    return fill("page.html", {"spread": late_figures, "text": as_text}, values)
