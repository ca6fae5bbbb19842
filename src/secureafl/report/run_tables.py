"""The tables of a report about its single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from secureafl.presentation.labels import as_text, flat_texts
from secureafl.report.drawing import slug
from secureafl.report.export import Table, Value, plain, share, texts
from secureafl.report.formatting import late_figures, number
from secureafl.report.tables import Late, Row, Run
from secureafl.runs.lanes import Lane


def table_of_runs(rows: Sequence[Row]) -> Table:
    """A line for each run."""
    names = {row.metric for row in rows if row.metric}
    metric = names.pop().upper() if len(names) == 1 else ""
    with_asr = any(row.asr for row in rows)
    head = ["Run", "Defence", "Attack", "Seed", "Rounds"]
    head += [f"{metric or 'Main metric'}, late", f"{metric or 'Main metric'}, last"]
    head += ["ASR, late", "ASR, last"] if with_asr else []
    head += ["Honest accepted", "Malicious accepted", "Rounds/s", "State"]
    lines = [_line(row, metric, with_asr) for row in rows]
    return Table("runs", "The runs one by one", head, lines)


def table_of_clients(run: Run, number_: int, lanes: Sequence[Lane]) -> Table:
    """A line for each client, the most suspicious first."""
    head = ["Client", "Known to be malicious", "Refused more often than not", "Suspicion"]
    head += ["Uploads", "Refused", "Why", "Distance", "Times the median", "Mean staleness"]
    lines = [
        [
            plain(lane.client),
            plain("yes" if lane.malicious else "no"),
            plain("yes" if lane.mostly_refused else "no"),
            Value(f"{lane.suspicion:.2f}", {"": lane.suspicion}),
            plain(lane.uploads),
            share(lane.refused / lane.uploads),
            plain(reasons_of(lane)),
            plain(lane.distance),
            plain(lane.times),
            Value(f"{lane.mean_staleness:.1f}", {"": lane.mean_staleness}),
        ]
        for lane in lanes
    ]
    return Table(_file("clients", run, number_), f"Clients of {run.name}", head, lines)


def table_of_refusals(run: Run, number_: int) -> Table:
    """Refused uploads by reason, the most frequent first."""
    arrivals = run.arrivals
    honest, malicious = (
        np.bincount(arrivals.reason[~arrivals.accepted & group], minlength=len(arrivals.reasons))
        for group in (~arrivals.malicious, arrivals.malicious)
    )
    found = [
        (reason or "none given", int(good), int(bad))
        for reason, good, bad in zip(arrivals.reasons, honest, malicious, strict=True)
        if good + bad
    ]
    found.sort(key=lambda one: -(one[1] + one[2]))
    title = f"Refused uploads of {run.name} by reason"
    return texts(_file("refusals", run, number_), title, ["Reason", "Honest", "Malicious"], found)


def table_of_origin(run: Run, number_: int) -> Table:
    """Where the numbers come from: what holds for the run, then for its sessions."""
    sessions = run.provenance.get("sessions", [])
    told = [flat_texts(one) for one in sessions if isinstance(one, Mapping)]
    facts = {k: as_text(v) for k, v in run.provenance.items() if k != "sessions"}
    keys = dict.fromkeys(key for one in told for key in one)
    lines = [[name, value, *[""] * len(told)] for name, value in facts.items()]
    lines += [[key, "", *(one.get(key, "") for one in told)] for key in keys]
    head = ["What", "Run", *(f"Session {i}" for i in range(1, len(told) + 1))]
    return texts(_file("origin", run, number_), f"Origin of {run.name}", head, lines)


def reasons_of(lane: Lane) -> str:
    """Why a client's uploads were refused, and how often."""
    found = [(reason or "no reason given", count) for reason, count in lane.reasons.items()]
    return ", ".join(f"{reason} \N{MULTIPLICATION SIGN}{count:,}" for reason, count in found)


def _file(what: str, run: Run, number_: int) -> str:
    return f"{what}-{number_:02d}-{slug(run.name)}"


def _line(row: Row, metric: str, with_asr: bool) -> list[Value]:
    prefix = f"{row.metric.upper()} " if row.metric and row.late and not metric else ""
    unfinished = f" of {row.planned:,}" if not row.finished and row.planned is not None else ""
    late = [_late(row.late, prefix), _last(row.late)]
    return [
        *map(plain, (row.name, row.defense, row.attack, row.seed)),
        Value(f"{row.rounds:,}{unfinished}", {"": row.rounds}),
        *late,
        *([_late(row.asr, ""), _last(row.asr)] if with_asr else []),
        share(row.honest),
        share(row.malicious),
        _rate(row.rounds_per_second),
        plain("finished" if row.finished else "unfinished"),
    ]


def _late(found: Late | None, prefix: str) -> Value:
    parts = {"mean": found.mean, "std": found.std} if found else {"mean": None, "std": None}
    return Value(prefix + late_figures(found), parts)


def _last(found: Late | None) -> Value:
    return Value(number(found.last), {"": found.last}) if found else plain(None)


def _rate(value: float | None) -> Value:
    return plain(None) if value is None else Value(f"{value:,.1f}", {"": value})
