"""Files and folders that grow while they are read."""

import itertools

import pytest
from dashboard.folders import arrival, evaluation, lines, write_run
from hypothesis import given
from hypothesis import strategies as st

from secureafl.runs.pace import Pace
from secureafl.runs.tail import BLOCK, Tail
from secureafl.runs.thinned import Cursor, Thinned
from secureafl.runs.watch import FINISHED, QUIET, RUNNING, Watch


def read_all(tail: Tail) -> list[bytes]:
    found: list[bytes] = []
    more = True
    while more:
        block = tail.read()
        found += block.lines
        more = block.more
    return found


def everything(watch: Watch) -> Watch:
    while watch.refresh():
        pass
    return watch


def test_tail_gives_each_line_once_and_waits_for_half_lines(tmp_path):
    file = tmp_path / "lines"
    tail = Tail(file)
    assert tail.read().lines == []
    file.write_bytes(b"one\ntw")
    first = tail.read()
    assert (first.lines, first.half) == ([b"one"], True)
    with file.open("ab") as growing:
        growing.write(b"o\n")
    second = tail.read()
    assert (second.lines, second.half, second.again) == ([b"two"], False, False)
    assert tail.read().lines == []


@pytest.mark.parametrize("after", [b"one\n", b"one\nother\n", b"one\nother and longer\nmore\n"])
def test_file_cut_back_or_written_anew_is_read_from_the_start(tmp_path, after):
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\nthree\n")
    tail = Tail(file)
    tail.read()
    file.write_bytes(after)
    block = tail.read()
    assert block.again
    assert block.lines == after.splitlines()


def test_change_is_noticed_after_a_reading_that_found_nothing(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    tail = Tail(file)
    assert [tail.read().lines, tail.read().lines] == [[b"one", b"two"], []]
    file.write_bytes(b"one\nnew\n")
    assert tail.read() == ([b"one", b"new"], True, False, False)
    file.unlink()
    assert tail.read() == ([], True, False, False)
    assert tail.read() == ([], False, False, False)


def test_tail_reads_long_files_in_blocks_and_refuses_endless_lines(tmp_path):
    file = tmp_path / "lines"
    wanted = [b"%d" % i + b"x" * 100 for i in range(BLOCK // 50)]
    file.write_bytes(b"\n".join(wanted) + b"\n")
    assert read_all(Tail(file)) == wanted
    file.write_bytes(b"x" * (BLOCK + 1))
    with pytest.raises(Exception, match="damaged"):
        Tail(file).read()


@given(st.integers(0, 200), st.integers(1, 30).map(lambda n: 2 * n), st.data())
def test_thinned_series_is_even_bounded_and_readers_never_miss_a_point(count, room, data):
    series: Thinned[int] = Thinned(room)
    mine: list[int] = []
    cursor = Cursor(-1, 0)
    for i in range(count):
        series.add(i)
        if data.draw(st.booleans()):
            start, fresh = series.since(cursor)
            mine, cursor = [*mine[:start], *fresh], series.cursor
            assert mine == series.points
    points = series.points
    assert len(points) <= room
    assert points[-1:] == list(range(count))[-1:]
    gaps = {b - a for a, b in itertools.pairwise(points[:-1])}
    assert len(gaps) <= 1


def test_watch_follows_a_run_from_its_first_event_to_its_result(tmp_path):
    path = write_run(tmp_path / "run", [], 10, 4)
    watch = everything(Watch(path))
    assert (watch.digest.rounds, watch.state, watch.problems) == (0, RUNNING, [])
    with (path / "events.jsonl").open("a") as file:
        file.write(lines([evaluation(0, ter=0.9), arrival(0), arrival(1, 3)]))
    before = watch.version
    everything(watch)
    assert (watch.digest.rounds, sorted(watch.digest.clients)) == (2, [0, 3])
    assert watch.version > before
    (path / "result.json").write_text("{}")
    assert everything(watch).state == FINISHED


def test_events_done_again_after_a_resume_are_not_counted_twice(tmp_path):
    path = write_run(tmp_path / "run", [arrival(i) for i in range(10)], 20, 4)
    watch = everything(Watch(path))
    (path / "events.jsonl").write_text(lines([arrival(i, 1) for i in range(14)]))
    everything(watch)
    assert watch.digest.uploads == 14
    assert watch.generation == 1
    assert watch.digest.clients[1].uploads == 14


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: (path / "experiment.toml").write_text("seed = ["), "not valid TOML"),
        (lambda path: (path / "experiment.toml").unlink(), "experiment.toml: missing"),
        (lambda path: (path / "provenance.json").write_text('{"se'), "cannot be read"),
        (lambda path: (path / "events.jsonl").unlink(), "events.jsonl: missing"),
        (lambda path: (path / "result.json").write_text("[1]"), "holds no JSON object"),
    ],
)
def test_damaged_folder_is_shown_as_far_as_it_goes_and_told(tmp_path, damage, told):
    path = write_run(tmp_path / "run", [arrival(i) for i in range(10)], 10, 4)
    damage(path)
    watch = everything(Watch(path))
    assert told in " ".join(watch.problems)


def test_damaged_lines_are_left_out_and_counted(tmp_path):
    path = write_run(tmp_path / "run", [arrival(0)], 10, 4)
    with (path / "events.jsonl").open("a") as file:
        file.write('garbage\n{"event": "arrival"}\n' + lines([arrival(1)]))
    watch = everything(Watch(path))
    assert watch.digest.uploads == 2
    assert "2 damaged lines were left out (the first: line 2" in watch.problems[0]


def test_damaged_line_is_named_by_its_place_in_the_whole_file(tmp_path):
    path = write_run(tmp_path / "run", [arrival(0), arrival(1)], 10, 4)
    watch = everything(Watch(path))
    with (path / "events.jsonl").open("a") as file:
        file.write("garbage\n")
    assert "the first: line 3," in everything(watch).problems[0]


def test_half_a_line_at_the_end_is_told_once_the_run_is_quiet(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run", [arrival(0)], 10, 4)
    with (path / "events.jsonl").open("a") as file:
        file.write('{"event": "arr')
    watch = everything(Watch(path))
    assert watch.problems == []
    monkeypatch.setattr("secureafl.runs.watch.QUIET_SECONDS", 0.0)
    assert (watch.state, len(watch.problems)) == (QUIET, 1)
    assert "half a line" in watch.problems[0]


def test_folder_that_goes_away_is_told(tmp_path):
    path = write_run(tmp_path / "run", [arrival(0)], 10, 4)
    watch = everything(Watch(path))
    path.rename(tmp_path / "elsewhere")
    everything(watch)
    assert "the run folder is gone" in watch.problems[0]


def test_pace_spans_no_pause_and_counts_rounds_done_again_once():
    pace = Pace()
    moments = [(0, 0, 0), (0, 10, 100), (0, 20, 300), (500, 0, 150), (500, 10, 250)]
    found = [dict(zip(("opened", "seconds", "rounds"), m, strict=True)) for m in moments]
    pace.add([*lines(found).encode().splitlines(), b"junk", b'{"opened": 1}'])
    assert [moment.rounds for moment in pace.moments.points] == [0, 100, 150, 250]
    assert pace.per_second == 10
    assert pace.times([99, 100, 120, 900]) == [10, 500, 500, 510]


def test_moments_without_progress_stay_and_a_new_session_replaces_its_first_round():
    pace = Pace()
    moments = [(0, 0, 0), (0, 10, 100), (0, 20, 100), (500, 0, 100)]
    found = [dict(zip(("opened", "seconds", "rounds"), m, strict=True)) for m in moments[:3]]
    pace.add(lines(found).encode().splitlines())
    assert [moment.time for moment in pace.moments.points] == [0, 10, 20]
    assert pace.per_second == 0
    pace.add([b'{"opened": 500, "seconds": 0, "rounds": 100}'])
    assert [moment.time for moment in pace.moments.points] == [0, 500]
    assert pace.per_second is None


def test_series_that_was_cut_goes_on_evenly_and_readers_start_over():
    series: Thinned[int] = Thinned(8)
    for i in range(20):
        series.add(i)
    assert series.points == [0, 4, 8, 12, 16, 19]
    cursor = series.cursor
    series.cut(lambda point: point < 10)
    assert series.since(cursor) == (0, [0, 4, 8])
    for i in range(12, 22):
        series.add(i)
    assert series.points == [0, 4, 8, 12, 16, 20, 21]
