"""Lines of `events.jsonl`: how an event is written, and the one place where it is read.

A run folder may be damaged, or come from somebody else. A line is damaged if it is no JSON object,
of no known kind, or if a field is missing, unknown, of another type than it should be or out of
range. Everybody who reads events means the same by that; `parse` leaves such lines out and names
them (for a page that shows whatever there is), `read_events` refuses the file (for figures).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event, ForgottenEvent
from secureafl.runs.layout import EVENTS, to_json

_KINDS: dict[str, type[Event]] = {
    "arrival": ArrivalEvent,
    "evaluation": EvaluationEvent,
    "forgotten": ForgottenEvent,
}
_NAMES = {cls: name for name, cls in _KINDS.items()}
_TYPES: dict[type[Event], tuple[type, ...]] = {  # of the fields, in their order
    ArrivalEvent: (int, int, bool, int, bool, bool, str, dict),
    EvaluationEvent: (int, dict),
    ForgottenEvent: (int, int),
}
_ARRIVAL = b'{"event": "arrival", '  # how such a line begins
_LARGEST = 2**53  # beyond, a browser's numbers are no longer whole
_MOST_FIGURES, _LONGEST_TEXT = 64, 200
_BLOCK = 2**18  # bytes read at a time
_LAST_BYTES = 8192  # some dozens of events


class Parsed(NamedTuple):
    """Events, and which lines were none."""

    events: list[Event]
    damaged: list[tuple[int, str]]  # place among the lines, from 0, and what is wrong


def encode(event: Event) -> bytes:
    """The line of an event."""
    figures = _figures_of(event)
    if len(figures) > _MOST_FIGURES:
        raise RunError(f"{len(figures)} figures at once; a run folder keeps {_MOST_FIGURES}")
    return (to_json({"event": _NAMES[type(event)], **event._asdict()}) + "\n").encode()


def parse(lines: Sequence[bytes]) -> Parsed:
    """The events of some lines; those that are damaged are left out and named."""
    events: list[Event] = []
    damaged: list[tuple[int, str]] = []
    for place, fields in enumerate(_objects(lines)):
        try:
            events.append(_event(fields))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            damaged.append((place, f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]))
    return Parsed(events, damaged)


def read_events(path: Path) -> Iterator[Event]:
    """All events of a run folder; a damaged line is an error that names it.

    An unfinished last line is passed over: the process was killed, or is just writing it.
    """
    for number, lines in _blocks(path / EVENTS):
        yield from _undamaged(path, lines, range(number, number + len(lines)))


def read_evaluations(path: Path) -> Iterator[EvaluationEvent]:
    """The evaluations of a run folder, without looking into the far more numerous arrivals."""
    for number, lines in _blocks(path / EVENTS):
        wanted = [i for i, line in enumerate(lines) if not line.startswith(_ARRIVAL)]
        numbers = [number + i for i in wanted]
        for event in _undamaged(path, [lines[i] for i in wanted], numbers):
            if isinstance(event, EvaluationEvent):
                yield event


def last_events(path: Path) -> list[Event]:
    """The last few events of a run that another process may be writing; none if there is no run."""
    try:
        with (path / EVENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    return parse(lines[:-1]).events  # the first line may be cut: that is no event either


def last_evaluation(path: Path) -> EvaluationEvent | None:
    """The last evaluation of a run that another process may be writing, if it is not long ago."""
    try:
        with (path / EVENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BLOCK))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        found = [] if line.startswith(_ARRIVAL) else parse([line]).events
        if found and isinstance(found[0], EvaluationEvent):
            return found[0]
    return None


def number(value: float | None) -> float:
    """A figure to calculate with; NaN where it is undefined."""
    found = nan if value is None else float(value)
    return found if isfinite(found) else nan


def _blocks(file: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines, some at a time, with the number of the first of them."""
    number = 1
    try:
        with file.open("rb") as stream:
            while found := stream.readlines(_BLOCK):
                lines = [line[:-1] for line in found if line.endswith(b"\n")]
                yield number, lines
                number += len(lines)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error


def _undamaged(path: Path, lines: Sequence[bytes], numbers: Sequence[int]) -> list[Event]:
    events, damaged = parse(lines)
    if damaged:
        place, why = damaged[0]
        raise RunError(f"{path / EVENTS}, line {numbers[place]}: damaged ({why})")
    return events


def _event(fields: Any) -> Event:
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    return _checked(_KINDS[fields.pop("event")](**fields))


def _checked(event: Event) -> Event:
    """The event, if its fields have the types they should; undefined figures become None."""
    types = _TYPES[type(event)]
    if tuple(map(type, event)) != types:
        pairs = zip(event._fields, map(type, event), types, strict=True)
        raise TypeError(
            ", ".join(f"{n} is not of type {t.__name__}" for n, f, t in pairs if f != t)
        )
    numbers = [value for value in event if type(value) is int]
    if min(numbers) < 0 or max(numbers) >= _LARGEST:
        raise ValueError("a number is below 0 or out of range")
    _check_figures(_figures_of(event))
    if isinstance(event, ArrivalEvent) and len(event.reason) > _LONGEST_TEXT:
        return event._replace(reason=event.reason[:_LONGEST_TEXT])
    return event


def _figures_of(event: Event) -> dict[str, float | None]:
    if isinstance(event, ArrivalEvent):
        return event.scores
    return event.metrics if isinstance(event, EvaluationEvent) else {}


def _check_figures(figures: dict[str, Any]) -> None:
    """Raise unless these are numbers; what is not finite becomes None, in place."""
    if len(figures) > _MOST_FIGURES:
        raise ValueError(f"more than {_MOST_FIGURES} figures")
    for name, value in figures.items():
        if type(value) not in (float, int, type(None)):
            raise TypeError(f"{name} is no number")
        if value is not None and not isfinite(value):
            figures[name] = None


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
