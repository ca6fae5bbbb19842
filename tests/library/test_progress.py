import io

import pytest
from rich.console import Console

from secureafl.presentation import progress
from secureafl.presentation.progress import Bars, Count, Lines
from secureafl.sweep.cells import Update
from secureafl.sweep.tally import RunProgress


def update(cell, state, round=0):
    return Update(cell, RunProgress(round=round, metrics={"ter": 0.25}), state)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_counts_what_this_session_did(clock):
    count = Count(dict.fromkeys("abcd", 1000))
    count.add(update("a", "finished"))  # before: no sign of today's pace
    count.add(update("b", "running", 500))
    assert count.describe() == "1/4 cells done, 0 failed, 1 running"
    clock[0] += 60
    count.add(update("b", "running", 800))
    # 300 rounds took a minute, and 2200 are left.
    assert count.describe() == "1/4 cells done, 0 failed, 1 running, 5.0 rounds/s, 0:07:20 left"


def test_failed_cell_is_counted_once_it_has_failed_for_good(clock):
    count = Count(dict.fromkeys("ab", 100))
    count.add(update("a", "running", 1))
    count.add(update("a", "waiting"))
    assert count.describe() == "0/2 cells done, 0 failed"
    count.add(update("a", "failed"))
    count.add(update("b", "finished"))
    assert count.describe() == "1/2 cells done, 1 failed"
    assert count.rounds == 200


def test_only_running_cells_have_bars_and_not_too_many(clock):
    cells = [f"cell{number}" for number in range(40)]
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=60)
    with Bars(console, dict.fromkeys(cells, 100)) as bars:
        for cell in cells[:20]:
            bars.tell(update(cell, "running", 7))
        shown = [task.description for task in bars._progress.tasks]
        assert shown[0] == "0/40 cells done, 0 failed, 20 running"
        assert shown[1] == "cell0  TER 0.250"
        assert len(shown) == 17
        bars.tell(update("cell0", "finished", 100))
        bars.tell(update("cell19", "running", 8))
        shown = [task.description for task in bars._progress.tasks]
        assert "cell0  TER 0.250" not in shown
        assert "cell19  TER 0.250" in shown


def test_all_runs_that_are_known_by_now_are_counted(clock):
    console, rounds = Console(file=io.StringIO(), force_terminal=True, width=120), {"a": 100}
    with Bars(console, rounds) as bars:
        bars.tell(update("a", "running", 50))
        rounds["b"] = 300
        bars.tell(update("a", "finished", 100))
        (whole,) = [task for task in bars._progress.tasks if "done" in task.description]
        assert (whole.completed, whole.total) == (100, 400)
        assert whole.description.startswith("1/2 cells done")


def test_without_a_terminal_there_is_a_line_now_and_then(clock):
    console = Console(file=io.StringIO(), width=120)
    with Lines(console, {"a": 100, "b": 100}) as lines:
        for round in range(0, 100, 10):
            clock[0] += 1
            lines.tell(update("a", "running", round))
        lines.tell(update("a", "finished"))
    said = console.file.getvalue().splitlines()
    assert len(said) == 3
    assert said[-1].startswith("1/2 cells done, 0 failed")


def test_one_run_is_described_by_its_round_and_figures(clock):
    count = Count({"run": 1000})
    begun = RunProgress(round=400)
    count.add(Update("run", begun, "running"))
    clock[0] += 10
    now = begun._replace(round=500, accepted=90, rejected=10, metrics={"ter": 0.25, "asr": None})
    count.add(Update("run", now, "running"))
    assert count.describe() == (
        "run: round 500/1000, 10.0 rounds/s, 0:00:50 left  "
        "TER 0.250  ASR none  accepted 90  rejected 10"
    )
