"""The local engine: who gets which cell, and what happens when a process dies."""

import contextlib
import threading
import time

import pytest
from sweep.small_grid import DYING, contents, run_here, tiny_grid

from secureafl.core.errors import LockedError
from secureafl.experiment import to_mapping
from secureafl.runs import folder
from secureafl.runs.folder import RunFolder
from secureafl.simulation.run import open_run
from secureafl.sweep import local
from secureafl.sweep.cells import RunningCell, Task, Update
from secureafl.sweep.engines import run_sweep
from secureafl.sweep.tally import RunProgress


class FakeProcess:
    """Ends each cell after its number of rounds in hundredths of seconds; some kill it."""

    exitcode, ended = -9, False

    def __init__(self, line, deadly):
        self.line, self.deadly, self.taken, self.most = line, deadly, [], 0
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self):
        ends = {}
        while True:
            if self.line.poll(0.005):
                try:
                    task = self.line.recv()
                except EOFError:
                    return
                if task.cell in self.deadly:
                    self.line.close()
                    return
                self.taken.append(task.cell)
                ends[task.cell] = time.monotonic() + task.experiment["rounds"] / 100
                self.most = max(self.most, len(ends))
            for cell in [cell for cell, end in ends.items() if end <= time.monotonic()]:
                del ends[cell]
                self.line.send(Update(cell, RunProgress(), "finished"))

    def terminate(self):
        self.ended = True

    def join(self):
        pass


@pytest.fixture
def crew(monkeypatch):
    """Processes that were started; cells whose name is in `crew.deadly` kill theirs."""

    class Crew(list):
        deadly: frozenset[str] = frozenset()

    found = Crew()

    def start(running, checkpoint_seconds):
        line, far_end = local.multiprocessing.get_context("spawn").Pipe()
        found.append(FakeProcess(far_end, found.deadly))
        running[line] = local._Worker(found[-1], set())

    monkeypatch.setattr(local, "_start", start)
    monkeypatch.setattr(local, "_uses_gpu", lambda experiment: True)
    monkeypatch.setattr(local, "_gpu_processes", lambda shared: 2)
    return found


def test_on_a_gpu_few_processes_share_the_cells(crew, tmp_path):
    cells = tiny_grid(rounds=[5], seed=list(range(11))).cells()
    updates = list(local.run_cells(cells, tmp_path, 6, 60.0))
    assert sorted(update.cell for update in updates) == sorted(cells)
    assert [process.most for process in crew] == [3, 3]


def test_slow_cell_leaves_nobody_idle(crew, tmp_path):
    cells = tiny_grid(rounds=[60]).cells() | tiny_grid(rounds=[1], seed=list(range(10))).cells()
    updates = list(local.run_cells(cells, tmp_path, 2, 60.0))
    assert updates[-1].cell == "rounds60"
    assert [len(process.taken) for process in crew] == [1, 10]


def test_cells_that_come_later_are_run_while_others_are(crew, tmp_path):
    cells = tiny_grid(rounds=[1, 80]).cells()
    later = tiny_grid(rounds=[1], seed=[1, 2, 3]).cells()
    order = []
    for update in run_sweep(local.run_cells, cells, tmp_path, 2):
        order.append(update.cell)
        if later:
            name = next(iter(later))
            cells[name] = later.pop(name)
    assert order == ["rounds1", "rounds1-seed1", "rounds1-seed2", "rounds1-seed3", "rounds80"]
    assert len(crew) == 2


def test_engine_that_does_not_look_for_more_cells_is_called_once_more(tmp_path):
    cells, asked = tiny_grid(seed=[1]).cells(), []

    def engine(cells, out, workers, checkpoint_seconds, apart=False):
        asked.append(list(cells))
        for cell in list(cells):
            state = "failed" if cell == "seed1" and not apart else "finished"
            yield Update(cell, RunProgress(), state)

    ends = []
    for update in run_sweep(engine, cells, tmp_path):
        ends.append((update.cell, update.state))
        if len(ends) == 1:
            cells |= tiny_grid(seed=[2]).cells()
    assert ends == [("seed1", "waiting"), ("seed1", "finished"), ("seed2", "finished")]
    assert asked == [["seed1"], ["seed1"], ["seed2"]]


def test_apart_no_two_cells_share_a_process(crew, tmp_path):
    cells = tiny_grid(rounds=[1], seed=list(range(5))).cells()
    list(local.run_cells(cells, tmp_path, 6, 60.0, apart=True))
    assert [process.most for process in crew] == [1, 1]


def test_dead_process_fails_its_cells_only_and_another_takes_its_place(crew, tmp_path):
    crew.deadly = frozenset(["rounds1-seed4"])
    cells = tiny_grid(rounds=[1], seed=list(range(12))).cells()
    updates = list(local.run_cells(cells, tmp_path, 4, 60.0))
    assert sorted(update.cell for update in updates) == sorted(cells)
    failed = {update.cell: update.message for update in updates if update.state == "failed"}
    assert failed["rounds1-seed4"] == "its process ended with code -9"
    assert len(failed) <= 2
    assert len(crew) == 3


def test_kept_processes_do_one_sweep_after_the_other(crew, tmp_path):
    with local.kept_processes():
        for seed in range(3):
            cells = tiny_grid(rounds=[1], seed=[seed, seed + 10]).cells()
            list(local.run_cells(cells, tmp_path / str(seed), 2, 60.0))
        assert [len(process.taken) for process in crew] == [3, 3]
        assert not any(process.ended for process in crew)
    assert all(process.ended for process in crew)
    list(local.run_cells(cells, tmp_path / "outside", 2, 60.0))
    assert len(crew) == 4, "outside, each sweep has its own"


def test_kept_processes_end_with_a_sweep_that_is_left_early(crew, tmp_path):
    cells = tiny_grid(rounds=[1, 50]).cells()
    with local.kept_processes():
        left = local.run_cells(cells, tmp_path / "left", 2, 60.0)
        next(left)
        left.close()
        assert [process.ended for process in crew] == [True, True], "their cells have to stop"
        updates = list(local.run_cells(cells, tmp_path / "again", 2, 60.0))
    assert sorted(update.cell for update in updates) == sorted(cells)
    assert len(crew) == 4


def test_kept_processes_end_before_what_they_share_the_gpu_by(crew, tmp_path, monkeypatch):
    told = []

    @contextlib.contextmanager
    def shared_gpu():
        told.append("begun")
        yield True
        told.append(f"ended after {sum(process.ended for process in crew)} processes")

    monkeypatch.setattr(local, "shared_gpu", shared_gpu)
    with local.kept_processes():
        for seed in range(2):
            cells = tiny_grid(rounds=[1], seed=[seed, seed + 10]).cells()
            list(local.run_cells(cells, tmp_path / str(seed), 2, 60.0))
    assert told == ["begun", "ended after 2 processes"]


@pytest.mark.slow
def test_cells_of_a_real_process_that_died_are_run_once_more(tmp_path, monkeypatch):
    """By turns in one process at first, as on a GPU."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.setattr(local, "_uses_gpu", lambda experiment: True)
    monkeypatch.setattr(local, "_gpu_processes", lambda shared: 1)
    cells = tiny_grid(defense=["async_sgd", "secure_afl", "dying:Dying"]).cells()
    updates = list(run_sweep(local.run_cells, cells, tmp_path / "all", 3))
    ends = [(u.cell, u.state) for u in updates if u.state != "running"]
    assert {state for _, state in ends[:3]} == {"waiting"}
    assert sorted(ends[3:]) == [(cell, "finished") for cell in sorted(cells)]
    run_here(cells, tmp_path / "whole")
    for name in cells:
        assert contents(tmp_path / "all", name) == contents(tmp_path / "whole", name)


def test_failing_twice_is_reported_and_the_others_go_on(tmp_path):
    cells = tiny_grid(defense=["async_sgd", "kardam", "basgd"]).cells()
    asked = []

    def engine(cells, out, workers, checkpoint_seconds, apart=False):
        asked.append((list(cells), apart))
        for cell in cells:
            state = "finished" if cell == "async_sgd" else "failed"
            yield Update(cell, RunProgress(), state, "out of luck")

    ends = {update.cell: update.state for update in run_sweep(engine, cells, tmp_path)}
    assert ends == {"async_sgd": "finished", "kardam": "failed", "basgd": "failed"}
    assert asked == [(list(cells), False), (["kardam", "basgd"], True)]


def test_bits_do_not_depend_on_the_number_of_workers(tmp_path):
    seen = []

    def engine(cells, out, workers, checkpoint_seconds, apart=False):
        seen.append({cell.threads for cell in cells.values()})
        yield from ()

    for workers in (0, 1, 7):
        list(run_sweep(engine, tiny_grid(threads=[0, 3]).cells(), tmp_path, workers))
    assert seen == [{1, 3}] * 3


def test_cell_waits_for_the_process_that_is_at_it(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.sweep.cells._LOCKED_SECONDS", 0.01)
    (experiment,) = tiny_grid().cells().values()
    recording = open_run(experiment, tmp_path / "run", 60.0)
    with pytest.raises(LockedError, match="another process is writing"):
        RunFolder(tmp_path / "run")
    ends = []
    cell = RunningCell(Task("run", to_mapping(experiment), tmp_path / "run"), 60.0, ends.append)
    assert all(cell.turn() for _ in range(20))
    recording.folder.close()
    while cell.turn():
        pass
    assert (ends[-1].state, ends[-1].progress.round) == ("finished", experiment.rounds)


def test_cell_that_another_sweep_begins_at_the_same_moment_is_left_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.sweep.cells._LOCKED_SECONDS", 0.01)
    (experiment,) = tiny_grid().cells().values()
    begun, refuse_taken = [], folder.refuse_taken

    def begin_first(path):
        if not begun:
            begun.append(None)
            begun[0] = open_run(experiment, path, 60.0)
        refuse_taken(path)

    monkeypatch.setattr(folder, "refuse_taken", begin_first)
    ends = []
    cell = RunningCell(Task("run", to_mapping(experiment), tmp_path / "run"), 60.0, ends.append)
    assert all(cell.turn() for _ in range(20))
    assert [*begun[0]]
    while cell.turn():
        pass
    assert {end.state for end in ends} == {"running", "finished"}
