"""One page that explains a set of runs, complete in itself."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np

from secureafl.core.errors import RunError
from secureafl.report.figures import Picture, clients, holdings, lipschitz, over_rounds
from secureafl.report.headline import headlines, number
from secureafl.report.labels import as_text, flatten
from secureafl.report.tables import Late, Run, compare, read_runs

PAGE = "index.html"
_NOTHING = "\N{EN DASH}"
_MARK = b'<meta name="generator" content="SecureAFL report">'


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
    facts: dict[str, str]
    sessions: list[dict[str, str]]
    session_keys: list[str]
    pictures: list[Picture]


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write `index.html` and its figures into `out`; returns the page's path.

    An earlier report is replaced; nothing is deleted, and the run folders are only read.
    """
    read = read_runs(runs)
    pictures = _comparison_pictures(read)
    sections = [_section(run, number) for number, run in enumerate(read, 1)]
    page = _render(read, pictures, sections)
    _save(out, [*pictures, *(picture for one in sections for picture in one.pictures)], page)
    return out / PAGE


def _comparison_pictures(runs: Sequence[Run]) -> list[Picture]:
    main = dict.fromkeys(run.metric for run in runs if run.metric)
    metrics = [*main, *({"asr"} - main.keys())]
    return _made(over_rounds(runs, metric) for metric in metrics)


def _made(pictures: Iterable[Picture | None]) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]


def _section(run: Run, number: int) -> Section:
    sessions = run.provenance.get("sessions", [])
    told = [flatten(one) for one in sessions if isinstance(one, Mapping)]
    return Section(
        run=run,
        settings=flatten(run.experiment),
        refusals=_refusals(run),
        facts={k: as_text(v) for k, v in run.provenance.items() if k != "sessions"},
        sessions=told,
        session_keys=list(dict.fromkeys(key for one in told for key in one)),
        pictures=_made(draw(run, number) for draw in (lipschitz, clients, holdings)),
    )


def _refusals(run: Run) -> list[Refusals]:
    """Refused uploads by reason, the most frequent first."""
    arrivals = run.arrivals
    refused = ~arrivals.accepted
    honest, malicious = (
        np.bincount(arrivals.reason[refused & group], minlength=len(arrivals.reasons))
        for group in (~arrivals.malicious, arrivals.malicious)
    )
    found = [
        Refusals(reason or "none given", int(good), int(evil))
        for reason, good, evil in zip(arrivals.reasons, honest, malicious, strict=True)
        if good + evil
    ]
    return sorted(found, key=lambda one: -(one.honest + one.malicious))


def _render(runs: Sequence[Run], pictures: list[Picture], sections: list[Section]) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": number,
        "spread": _spread,
        "percent": _percent,
        "data_uri": _data_uri,
        "text": as_text,
    }
    source = resources.files("secureafl.report").joinpath("page.html").read_text(encoding="utf-8")
    rows = compare(runs)
    names = {row.metric for row in rows if row.metric}
    return environment.from_string(source).render(
        headlines=headlines(runs),
        rows=rows,
        metric=names.pop().upper() if len(names) == 1 else "",
        with_asr=any(row.asr for row in rows),
        unfinished=any(not row.finished for row in rows),
        pictures=pictures,
        sections=sections,
    )


def _spread(late: Late | None) -> str:
    if late is None or math.isnan(late.mean):
        return _NOTHING
    return f"{number(late.mean)} ± {number(late.std)}"


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{100 * share:.1f} %"


def _data_uri(svg: bytes) -> str:
    # As an image an SVG can run no script, and its ids cannot clash with those of another.
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _save(out: Path, pictures: Iterable[Picture], page: str) -> None:
    remedy = "choose another --out"
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = out / PAGE
        if old.exists() and _MARK not in old.read_bytes()[:4096]:
            raise RunError(f"{old}: is not a report of SecureAFL and is kept; {remedy}")
        for picture in pictures:
            _replace(out / picture.file, picture.svg)
        # Names of files may hold bytes that are no text.
        _replace(old, page.encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror}); {remedy}") from error


def _replace(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
