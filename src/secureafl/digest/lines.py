"""Lines of events.jsonl as events whose every field has the type it should.

A run folder may be damaged, or come from somebody else: what is not an event is left out and told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from math import isfinite
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
            events.append(checked(event_of(fields)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            damaged.append((place, f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]))
    return Parsed(events, damaged)


def event_of(fields: Any) -> Event:
    """The event with these fields, whatever their types; `fields` is used up."""
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    cls = {"arrival": ArrivalEvent, "evaluation": EvaluationEvent}[fields.pop("event")]
    return cls(**fields)


def checked(event: Event) -> Event:
    """The event, if its fields have the types they should; undefined figures become NaN."""
    if isinstance(event, EvaluationEvent):
        _require_count("round", event.round)
        return EvaluationEvent(event.round, _numbers(event.metrics))
    if tuple(map(type, event)) != _TYPES:
        for name, value, type_ in zip(event._fields, event, _TYPES, strict=True):
            if type(value) is not type_:
                raise TypeError(f"{name} is not of type {type_.__name__}")
    *facts, reason, scores = event
    for name, value in (("round", facts[0]), ("client", facts[1]), ("staleness", facts[3])):
        _require_count(name, value)
    return ArrivalEvent(*facts, reason[:_LONGEST_TEXT], _numbers(scores))


def number(value: Any) -> float:
    """A figure; NaN where it is undefined."""
    if type(value) is float and isfinite(value):  # as nearly always
        return value
    found = math.nan if value is None else float(value)
    return found if isfinite(found) else math.nan


def _numbers(figures: dict[str, Any]) -> dict[str, float | None]:
    if len(figures) > _MOST_SCORES:
        raise ValueError(f"more than {_MOST_SCORES} figures")
    return {name: number(value) for name, value in figures.items()}


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
