"""Lines of events.jsonl as events whose every field has the type it should.

A run folder may be damaged, or come from somebody else: what is not an event is left out and told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event

_LARGEST = 2**53  # beyond, a browser's numbers are no longer whole
_MOST_SCORES, _LONGEST_TEXT = 16, 200
_TYPES = (int, int, bool, int, bool, bool, str, dict)  # of an arrival's fields, in their order


class Parsed(NamedTuple):
    """Events, and what was no event."""

    events: list[Event]
    damaged: list[tuple[int, str]]  # place among the lines, from 0, and what is wrong


def parse(lines: Sequence[bytes]) -> Parsed:
    """Events of some lines."""
    events: list[Event] = []
    damaged: list[tuple[int, str]] = []
    for place, fields in enumerate(_objects(lines)):
        try:
            event = event_of(fields)
            events += [event] if event else []
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            damaged.append((place, f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]))
    return Parsed(events, damaged)


def event_of(fields: Any) -> Event | None:
    """The event with these fields; None if it is of a kind that nothing is shown of."""
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    kind = fields.pop("event")
    if kind == "arrival":
        return checked(ArrivalEvent(**fields))
    return checked(EvaluationEvent(**fields)) if kind == "evaluation" else None


def checked(event: Event) -> Event:
    """The event, if its fields have the types they should; undefined figures become NaN."""
    if isinstance(event, EvaluationEvent):
        if type(event.round) is not int or not 0 <= event.round < _LARGEST:
            raise ValueError("round is no whole number, or out of range")
        return EvaluationEvent(event.round, _numbers(event.metrics))
    if not isinstance(event, ArrivalEvent):
        return event  # nothing of it is shown
    if tuple(map(type, event)) != _TYPES:
        pairs = zip(event._fields, map(type, event), _TYPES, strict=True)
        raise TypeError(
            ", ".join(f"{n} is not of type {t.__name__}" for n, f, t in pairs if f != t)
        )
    if min(event.round, event.client, event.staleness) < 0:
        raise ValueError("round, client or staleness below 0")
    if max(event.round, event.client, event.staleness) >= _LARGEST:
        raise ValueError("round, client or staleness out of range")
    if len(event.reason) > _LONGEST_TEXT:
        event = event._replace(reason=event.reason[:_LONGEST_TEXT])
    _numbers(event.scores)
    return event


def number(value: Any) -> float:
    """A figure; NaN where it is undefined."""
    found = nan if value is None else float(value)
    return found if isfinite(found) else nan


def _numbers(figures: dict[str, Any]) -> dict[str, float | None]:
    """The same dictionary, with NaN for what is undefined."""
    if not isinstance(figures, dict):
        raise TypeError("figures are no JSON object")
    if len(figures) > _MOST_SCORES:
        raise ValueError(f"more than {_MOST_SCORES} figures")
    for name, value in figures.items():
        if type(value) is not float or not isfinite(value):
            figures[name] = number(value)
    return figures


def _objects(lines: Sequence[bytes]) -> list[Any]:
    """Every line as JSON; together where possible, which takes half the time."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return found
    except (ValueError, RecursionError):
        pass
    return [_object(line) for line in lines]


def _object(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
