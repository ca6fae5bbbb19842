"""What counts as an event, and that everybody who reads events means the same by it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.run_folders import arrival, evaluation

from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, ForgottenEvent
from secureafl.report.tables import read_run
from secureafl.runs.events import (
    encode,
    last_events,
    parse,
    read_evaluations,
    read_events,
)
from secureafl.runs.query import results_table
from secureafl.runs.watch import Watch

ARRIVAL = ArrivalEvent(0, 3, True, 2, False, True, "lipschitz", {"lipschitz": 2.5, "x": None})
EVALUATION = EvaluationEvent(1, {"ter": 0.25, "asr": None})
FORGOTTEN = ForgottenEvent(1, 7)

# No arrival by its beginning, so that readers of evaluations look at it as well.
DAMAGED = [
    "garbage",
    "[]",
    "{}",
    '{"event": "unknown", "round": 1}',
    '{"event": "evaluation", "round": -1, "metrics": {}}',
    '{"event": "evaluation", "round": "x", "metrics": {}}',
    '{"event": "evaluation", "round": 0, "metrics": null}',
    '{"event": "evaluation", "round": 0, "metrics": {"ter": "0.5"}}',
    '{"event": "evaluation", "round": 0, "metrics": {}, "more": 1}',
    '{"event": "forgotten", "round": 0, "client": true}',
    '{"round": 0, "event": "arrival"}',
]


def append(path: Path, *lines: str) -> None:
    with (path / "events.jsonl").open("a") as file:
        file.write("".join(line + "\n" for line in lines))


def why(read: Callable[[], object]) -> str:
    with pytest.raises(RunError) as caught:
        read()
    return str(caught.value)


def test_events_are_read_as_they_were_written(tmp_path):
    wanted = [ARRIVAL, EVALUATION, FORGOTTEN]
    (tmp_path / "events.jsonl").write_bytes(b"".join(map(encode, wanted)))
    assert list(read_events(tmp_path)) == wanted
    assert list(read_evaluations(tmp_path)) == [EVALUATION]
    assert last_events(tmp_path) == wanted


def test_half_written_last_line_is_passed_over(tmp_path):
    (tmp_path / "events.jsonl").write_bytes(encode(EVALUATION) + b'{"event": "arr')
    assert list(read_events(tmp_path)) == [EVALUATION]
    assert list(read_evaluations(tmp_path)) == [EVALUATION]
    assert last_events(tmp_path) == [EVALUATION]


def test_missing_events_are_an_error_unless_only_the_last_are_wanted(tmp_path):
    assert "events.jsonl: cannot be read" in why(lambda: list(read_events(tmp_path)))
    assert last_events(tmp_path) == []


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_line_is_the_same_to_every_reader(make_run, line):
    path = make_run(events=[evaluation(0, ter=0.5), arrival(0)], finished=False)
    append(path, line, json.dumps(arrival(1)))
    (place, reason), *others = parse((path / "events.jsonl").read_bytes().splitlines()).damaged
    assert (place, others) == (2, [])
    told = f"{path}/events.jsonl, line 3: damaged ({reason})"
    assert why(lambda: list(read_events(path))) == told
    assert why(lambda: read_run(path)).startswith(told)
    query = "select * from evaluations"
    assert why(lambda: results_table([path]).query(query)) == told
    watch = Watch(path)
    watch.refresh()
    (problem,) = watch.problems
    assert problem == f"events.jsonl: 1 damaged line was left out (the first: line 3, {reason})"
    assert watch.digest.uploads == 2
    assert [event.round for event in last_events(path)] == [0, 0, 1]


def test_line_numbers_count_from_the_start_of_a_long_file(make_run):
    path = make_run(events=[arrival(i) for i in range(3000)])  # several blocks of lines
    append(path, json.dumps(evaluation(3000, ter=0.5)), "garbage")
    assert "line 3002: damaged" in why(lambda: list(read_events(path)))
    assert "line 3002: damaged" in why(lambda: list(read_evaluations(path)))


@pytest.mark.parametrize(
    "change",
    [
        {"client": -1},
        {"client": 2**70},
        {"client": "<script>"},
        {"accepted": 1},
        {"scores": None},
        {"scores": {str(i): 1.0 for i in range(99)}},
        {"scores": {"norm": "x"}},
        {"scores": {"norm": True}},
        {"scores": {"norm": 10**400}},
        {"extra": 1},
        {"round": True},
    ],
)
def test_arrivals_of_wrong_types_are_damage(change):
    found = parse([json.dumps(arrival(0) | change).encode()])
    assert not found.events
    assert len(found.damaged) == 1


@given(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b" ")), max_size=5))
def test_whatever_a_line_holds_it_is_an_event_or_named(junk):
    good = json.dumps(arrival(3)).encode()
    found = parse([good, *junk, good])
    assert len(found.damaged) <= len(junk)
    assert len(found.events) >= 2


def test_figures_that_are_not_finite_are_undefined():
    line = b'{"event": "evaluation", "round": 1, "metrics": {"a": NaN, "b": -Infinity, "c": 2}}'
    assert parse([line]).events == [EvaluationEvent(1, {"a": None, "b": None, "c": 2})]


def test_more_figures_than_can_be_read_are_not_written():
    with pytest.raises(RunError, match="99 figures at once"):
        encode(EvaluationEvent(1, {str(i): 0.0 for i in range(99)}))
