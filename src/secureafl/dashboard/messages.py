"""What is sent to a page about a run: all of it once, then what is new."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.presentation.labels import as_faced, as_text, flat_texts, kind
from secureafl.runs.digest import Digest, Score
from secureafl.runs.lanes import Lane, explain_suspicion, lanes, name_suspects
from secureafl.runs.layout import is_deployed
from secureafl.runs.pace import Moment
from secureafl.runs.refused import MEANING, refused_clients, tell_refused
from secureafl.runs.thinned import Cursor, Thinned
from secureafl.runs.watch import Watch

LANES = 25  # clients on a page
_LONGEST = 2000  # characters of a setting


class Place(NamedTuple):
    """How much of a run a page has."""

    generation: int = -1
    curves: Cursor = Cursor(-1, 0)
    scores: Cursor = Cursor(-1, 0)
    pace: Cursor = Cursor(-1, 0)

    def as_text(self) -> str:
        """The text for the id of a server-sent event."""
        return ".".join(map(str, (self.generation, *self.curves, *self.scores, *self.pace)))

    @classmethod
    def from_text(cls, text: str) -> Place:
        """The place an id stands for; the very start if the id is none of ours."""
        try:
            generation, *rest = map(int, text.split("."))
            cursors = [Cursor(*rest[i : i + 2]) for i in (0, 2, 4)]
        except (ValueError, TypeError):
            return cls()
        return cls(generation, *cursors) if min(rest) >= -1 and len(rest) == 6 else cls()


def message_for(
    name: str, watch: Watch, place: Place, whole: bool, first_lane: int = 0
) -> tuple[dict[str, Any], Place]:
    """What a page at `place` lacks; the run in front (`whole`) has more than its curves."""
    if place.generation != watch.generation:
        place = Place(watch.generation)
    digest = watch.digest
    message = {"head": head(name, watch), "curves": _curves(digest.evaluations, place.curves)}
    after = place._replace(curves=digest.evaluations.cursor)
    if whole:
        after = after._replace(scores=digest.scores.cursor, pace=watch.pace.moments.cursor)
        message |= _whole(watch, place, first_lane)
    return message, after


def _whole(watch: Watch, place: Place, first_lane: int) -> dict[str, Any]:
    digest = watch.digest
    found = lanes(digest)
    width, bars = digest.staleness_bars()
    return {
        "scores": _scores(digest, place.scores),
        "pace": _pace(watch.pace.moments, place.pace),
        "staleness": {"width": width, "bars": bars},
        "suspects": name_suspects(digest, found, is_deployed(watch.path)),
        "refused": tell_refused(refused_clients(digest), is_deployed(watch.path)),
        "explanation": _explanation(watch, found),
        "lanes": _lanes(watch, found, first_lane),
        "latest": [upload(event) for event in reversed(digest.latest)],
        "reasons": dict(digest.reasons.most_common()),
        "settings": {k: v[:_LONGEST] for k, v in flat_texts(watch.settings).items()},
        "provenance": _provenance(watch.provenance),
    }


def _explanation(watch: Watch, found: Sequence[Lane]) -> str:
    told = explain_suspicion(watch.digest, found, kind(watch.settings, "defense"))
    return f"{MEANING} {told}" if found else told


def head(name: str, watch: Watch) -> dict[str, Any]:
    """Which run this is, its state and its counts."""
    settings, digest = watch.settings, watch.digest
    faced = as_faced(settings, digest.malicious > 0, is_deployed(watch.path))
    planned, clients = settings.get("rounds"), settings.get("clients")
    per_second = watch.pace.per_second if not watch.result else None
    refused = refused_clients(digest)
    last = digest.evaluations.points[-1:]
    return {
        "name": name,
        "path": str(watch.path),
        "state": watch.state,
        "age": watch.age,
        "problems": watch.problems,
        "rounds": digest.rounds,
        "planned": planned if type(planned) is int else None,
        "clients": clients if type(clients) is int else None,
        "seen": len(digest.clients),
        "defense": kind(settings, "defense"),
        "attack": kind(faced, "attack"),
        "task": kind(settings, "task"),
        "seed": as_text(settings.get("seed", "")),
        "accepted": digest.accepted,
        "uploads": digest.uploads,
        "per_second": finite(per_second or watch.result.get("rounds_per_second")),
        "metrics": late_means(watch.result) or (last[0].metrics if last else {}),
        "caught": [len(refused.caught), refused.malicious],
        "silenced": [len(refused.silenced), refused.honest],
        "deployed": is_deployed(watch.path),
    }


def late_means(result: Mapping[str, Any]) -> dict[str, float | None]:
    """The late mean of every metric of a result, the main one first; none if it is damaged."""
    try:
        return {name: finite(found["late_mean"]) for name, found in result["metrics"].items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def _curves(series: Thinned[EvaluationEvent], cursor: Cursor) -> dict[str, Any]:
    start, points = series.since(cursor)
    names = dict.fromkeys(name for event in points for name in event.metrics)
    return {
        "start": start,
        "round": [event.round for event in points],
        "metrics": {name: [finite(event.metrics.get(name)) for event in points] for name in names},
    }


def _scores(digest: Digest, cursor: Cursor) -> dict[str, Any]:
    start, points = digest.scores.since(cursor)
    name, bound = digest.deciding or ("", None)
    return {
        "start": start,
        "name": name,
        "bound_name": bound,
        "malicious": digest.malicious > 0,
        "round": [point.round for point in points],
        "client": [point.client for point in points],
        "value": [finite(point.value) for point in points],
        "bound": [finite(point.bound) for point in points],
        "kind": [_kind(point) for point in points],
    }


def _kind(point: Score) -> int:
    return point.accepted + 2 * point.malicious


def _pace(series: Thinned[Moment], cursor: Cursor) -> dict[str, Any]:
    start, points = series.since(cursor)
    columns = ("opened", "seconds", "rounds")
    return {"start": start} | {name: [getattr(p, name) for p in points] for name in columns}


def _lanes(watch: Watch, found: Sequence[Lane], first: int) -> dict[str, Any]:
    first = min(max(0, first), max(0, (len(found) - 1) // LANES * LANES))
    shown = found[first : first + LANES]
    when = watch.pace.times(lane.last for lane in shown)
    rows = [lane._asdict() | {"when": time} for lane, time in zip(shown, when, strict=True)]
    return {"first": first, "total": len(found), "size": LANES, "rows": rows}


def upload(event: ArrivalEvent) -> dict[str, Any]:
    """One upload and what became of it."""
    fields = event._asdict()
    return fields | {"scores": {name: finite(value) for name, value in event.scores.items()}}


def _provenance(found: dict[str, Any]) -> dict[str, Any]:
    sessions = found.get("sessions", [])
    sessions = sessions if isinstance(sessions, Sequence) else []
    facts = {k: as_text(v)[:_LONGEST] for k, v in found.items() if k != "sessions"}
    return {"facts": facts, "sessions": [flat_texts(s) for s in sessions if isinstance(s, dict)]}


def finite(value: Any) -> float | None:
    """A figure as JSON can hold it: None unless it is finite."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None
