"""`secureafl sweep`, with real processes and real kills."""

import dataclasses
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import get_args

import pytest
from reference.tiny_task import TinyTask
from sweep.small_grid import GRID, contents, run_here, tiny_grid

import secureafl
from secureafl.cli.sweeping import print_table
from secureafl.core.errors import DataError, RunError
from secureafl.experiment import to_mapping
from secureafl.runtime.records import is_of
from secureafl.sweep import local
from secureafl.sweep.cells import unfinished
from secureafl.sweep.engines import EngineName, find_engine, require_runnable, run_sweep
from secureafl.sweep.grid import Grid, read_grid
from secureafl.toml import write_toml

SAMPLE = Path(__file__).parents[2] / "examples" / "small_grid.toml"


@pytest.mark.slow
def test_sample_grid_runs(cli):
    words = ("--rounds", 2, "--set", "evaluation.every=2", "--workers", 1, "--out", "all")
    done = cli("sweep", SAMPLE, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "4/4 cells done, 0 failed"
    assert len(re.findall(r"-\w+ +│ 1 +│ +0\.\d{3} ", done.stdout)) == 4
    assert len(list((cli.folder / "all").glob("*-seed0/result.json"))) == 4


def test_only_what_is_missing_is_left_to_run(tmp_path):
    first = tiny_grid(defense=["async_sgd"], seed=[0, 1])
    run_here(first.cells(), tmp_path)
    more = Grid(first.title, first.base, {"defense": ["async_sgd", "kardam"]}).with_seeds([1, 2])
    updates, tasks = unfinished(more.cells(), tmp_path)
    assert [(update.cell, update.state) for update in updates] == [("async_sgd-seed1", "finished")]
    left = [task.cell for task in tasks]
    assert left == ["kardam-seed1", "async_sgd-seed2", "kardam-seed2"]


@pytest.mark.parametrize("engine", get_args(EngineName))
def test_sweep_that_is_finished_is_finished_at_once(engine, tmp_path):
    cells = tiny_grid(defense=["async_sgd"], seed=[0, 1]).cells()
    run_here(cells, tmp_path)
    if engine != "local":
        pytest.importorskip({"slurm": "submitit"}.get(engine, engine))
    updates = list(run_sweep(find_engine(engine), cells, tmp_path))
    assert [(update.cell, update.state) for update in updates] == [
        ("async_sgd-seed0", "finished"),
        ("async_sgd-seed1", "finished"),
    ]


def test_data_are_loaded_once_before_any_cell_and_not_where_all_is_finished(tmp_path, monkeypatch):
    loaded, load = [], TinyTask.load
    monkeypatch.setattr(TinyTask, "load", lambda self: loaded.append(self) or load(self))
    cells = tiny_grid(defense=["async_sgd", "kardam"], seed=[0, 1]).cells()
    require_runnable("local", cells, tmp_path / "all")
    assert len(loaded) == 1
    assert not [*tmp_path.iterdir()]
    run_here(cells, tmp_path / "all")
    loaded.clear()
    require_runnable("local", cells, tmp_path / "all")
    assert not loaded


def test_data_that_a_task_of_the_users_own_cannot_load_are_told_once(tmp_path, monkeypatch):
    def load(self):
        raise KeyError("images")

    monkeypatch.setattr(TinyTask, "load", load)
    cells = tiny_grid(seed=[0, 1]).cells()
    with pytest.raises(DataError, match="its data cannot be loaded"):
        require_runnable("local", cells, tmp_path / "all")


@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_on_a_cluster_the_data_may_be_elsewhere(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(f"secureafl.sweep.{engine}.require_here", lambda devices: None)
    monkeypatch.setattr(TinyTask, "load", lambda self: 1 / 0)
    require_runnable(engine, tiny_grid().cells(), tmp_path / "all")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file: cannot be written"):
        require_runnable(engine, tiny_grid().cells(), tmp_path / "file")


def test_cell_finished_with_other_settings_is_not_taken_for_this_one(tmp_path):
    grid = tiny_grid(defense=["async_sgd"])
    run_here(grid.cells(), tmp_path)
    (update,), tasks = unfinished(grid.cells({"clients": 7}), tmp_path)
    assert not tasks
    assert update.state == "failed"
    said = "other settings (clients is 6 there and 7 here); choose another folder (out)"
    assert said in update.message


@pytest.mark.parametrize(("device", "same"), [("cuda", True), ("cuda:1", True), ("cpu", False)])
def test_a_run_on_a_gpu_is_the_same_with_any_number_of_cpu_threads(tmp_path, device, same):
    one = dataclasses.replace(secureafl.from_mapping({"device": device}), threads=1)
    (tmp_path / "experiment.toml").write_text(write_toml(to_mapping(one)))
    assert is_of(dataclasses.replace(one, threads=0), tmp_path) == same
    assert is_of(one, tmp_path)
    assert not is_of(dataclasses.replace(one, threads=0, seed=1), tmp_path)


def test_cell_of_a_version_that_lacked_a_setting_is_not_taken_for_this_one(tmp_path):
    grid = tiny_grid(defense=["kardam"])
    run_here(grid.cells(), tmp_path)
    (file,) = tmp_path.glob("*/experiment.toml")
    kept = [line for line in file.read_text().splitlines() if not line.startswith("clip_norm")]
    file.write_text("\n".join(kept))
    (update,), _ = unfinished(grid.cells(), tmp_path)
    assert update.state == "failed"
    assert "the setting 'defense.clip_norm'; choose another folder (out)" in update.message


def _signs_of_life(out):
    return sum(path.stat().st_size for path in out.glob("*/events.jsonl"))


def _kill_at_random(cli, words, rng, start_up):
    """Start the sweep, and kill all its processes at once; whether it was still at it."""
    process = cli.start(*words, start_new_session=True)
    if start_up:
        time.sleep(rng.uniform(0, 4))
    else:
        before = _signs_of_life(cli.folder / "all")
        while process.poll() is None and _signs_of_life(cli.folder / "all") == before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1))
    alive = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


@pytest.mark.parametrize(
    ("kills", "rounds"), [(1, 100), pytest.param(10, 3000, marks=pytest.mark.slow)]
)
def test_kills_of_everything_lose_nothing_and_repeat_nothing(cli, capsys, kills, rounds):
    (cli.folder / "grid.toml").write_text(GRID.format(rounds=rounds))
    words = ("sweep", "grid.toml", "--quiet", "--checkpoint-seconds", 0.05, "--out", "all")
    rng, out, kept = random.Random(kills), cli.folder / "all", {}
    for kill in range(kills):
        assert _kill_at_random(cli, words, rng, start_up=kill % 4 == 3)
        now = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
        assert kept.items() <= now.items(), "a finished cell was lost or repeated"
        kept = now
    cells = read_grid(cli.folder / "grid.toml").cells()
    updates = list(run_sweep(local.run_cells, cells, out, 1, 0.05))
    assert sorted(u.cell for u in updates if u.state == "finished") == sorted(cells)
    assert kept.items() <= {p: p.stat().st_mtime_ns for p in out.glob("*/result.json")}.items()
    run_here(cells, cli.folder / "whole")
    for name in cells:
        assert contents(out, name) == contents(cli.folder / "whole", name), name
    print_table(list(cells), out)
    table = capsys.readouterr().out
    print_table(list(cells), cli.folder / "whole")
    assert table == capsys.readouterr().out
    assert len(re.findall(r"│ 1 +│ +0\.\d{3} ", table)) == len(cells)


@pytest.mark.slow
def test_told_to_stop_it_says_how_to_go_on(cli):
    (cli.folder / "grid.toml").write_text(GRID.format(rounds=20_000))
    process = cli.start("sweep", "grid.toml", "--quiet", "--workers", 1)
    while process.poll() is None and not _signs_of_life(cli.folder / "runs/grid"):
        time.sleep(0.01)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines() == ["stopped; the same command goes on"]
    assert len(list((cli.folder / "runs/grid").glob("*/checkpoint.safetensors"))) == 1
