"""Lines of events.jsonl as events whose every field has the type it should.

A run folder may be damaged, or come from somebody else: what is not an event is left out and told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from math import isfinite
from operator import itemgetter
from typing import Any, NamedTuple

from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event

_LARGEST = 2**53  # beyond, a browser's numbers are no longer whole
_MOST_SCORES, _LONGEST_TEXT = 16, 200
_VALUES = itemgetter(*ArrivalEvent._fields)
_TYPES = (int, int, bool, int, bool, bool, str, dict)  # of these


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
            events.append(event_of(fields))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            damaged.append((place, f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]))
    return Parsed(events, damaged)


def event_of(fields: Any) -> Event:
    """The event with these fields, if all have the types they should; undefined figures are NaN."""
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    if fields.get("event") == "arrival":
        return _arrival(fields)
    if fields.keys() != {"event", "round", "metrics"} or fields["event"] != "evaluation":
        raise ValueError("neither an arrival nor an evaluation")
    _require_count("round", fields["round"])
    return EvaluationEvent(fields["round"], _numbers(fields["metrics"]))


def _arrival(fields: dict[str, Any]) -> ArrivalEvent:
    values = _VALUES(fields)
    if tuple(map(type, values)) != _TYPES or len(fields) != len(_TYPES) + 1:
        raise TypeError(_difference(fields))
    round_, client, malicious, staleness, accepted, stepped, reason, scores = values
    if not (0 <= round_ < _LARGEST and 0 <= client < _LARGEST and 0 <= staleness < _LARGEST):
        raise ValueError("round, client or staleness out of range")
    if len(reason) > _LONGEST_TEXT:
        reason = reason[:_LONGEST_TEXT]
    facts = (round_, client, malicious, staleness, accepted, stepped, reason, _numbers(scores))
    return ArrivalEvent(*facts)


def _difference(fields: dict[str, Any]) -> str:
    names = ArrivalEvent._fields
    wrong = [n for n, t in zip(names, _TYPES, strict=True) if type(fields[n]) is not t]
    return f"{wrong[0]} is of the wrong type" if wrong else "fields that no arrival has"


def number(value: Any) -> float:
    """A figure; NaN where it is undefined."""
    found = math.nan if value is None else float(value)
    return found if isfinite(found) else math.nan


def _numbers(figures: dict[str, Any]) -> dict[str, float | None]:
    """The same figures, with NaN for what is undefined."""
    if len(figures) > _MOST_SCORES:
        raise ValueError(f"more than {_MOST_SCORES} figures")
    for name, value in figures.items():
        if type(value) is not float or not isfinite(value):
            figures[name] = number(value)
    return figures


def _require_count(name: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError(f"{name} is no whole number, or out of range")


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
