"""Runs that are wanted in several places, and several grids in one command."""

import contextlib
import shutil

import pytest
from sweep.small_grid import GRID, contents, run_here, tiny_grid

from secureafl.cli.sweeping import grid_folders, run_with_progress
from secureafl.core.errors import ConfigError
from secureafl.runs.folder import RunFolder
from secureafl.runs.layout import CHECKPOINT
from secureafl.sweep.cells import unfinished
from secureafl.sweep.cluster import run_group
from secureafl.sweep.once import MadeOnce


@pytest.fixture
def ran(monkeypatch):
    """Lists of the cells that each sweep had to run; they run in this process."""
    ran = []

    def run_cells(cells, out, *rest, **more):
        updates, tasks = unfinished(dict(cells.items()), out)
        ran.append(sorted(task.cell for task in tasks))
        yield from [*updates, *run_group(tasks, 60.0, out)]

    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: run_cells)
    return ran


def tables(folder, **axes):
    """Two that share the cells of Kardam."""
    given = {"a": ["async_sgd", "kardam"], "b": ["kardam", "norm_clipping"]}
    grids = {name: tiny_grid(defense=found, **axes) for name, found in given.items()}
    return {folder / name: grid.cells() for name, grid in grids.items()}


def run(wanted):
    return run_with_progress(wanted, "local", 1, 60.0, quiet=True)


def test_what_two_tables_share_is_made_once_and_copied(tmp_path, ran):
    wanted = tables(tmp_path, seed=[0, 1])
    finished = run(wanted)
    assert {folder: sorted(names) for folder, names in finished.items()} == {
        folder: sorted(cells) for folder, cells in wanted.items()
    }
    assert len(ran[0]) == 6
    for name in ("kardam-seed0", "kardam-seed1"):
        assert contents(tmp_path / "a", name) == contents(tmp_path / "b", name)
    alone = tmp_path / "alone"
    run_here(wanted[tmp_path / "b"], alone)
    for name in wanted[tmp_path / "b"]:
        assert contents(tmp_path / "b", name) == contents(alone, name)
    assert run(wanted) == finished
    assert ran[1] == []


@pytest.mark.parametrize("there", ["a", "b"])
def test_what_one_table_has_the_other_gets_without_a_run(tmp_path, ran, there):
    wanted = tables(tmp_path)
    run_here({"kardam": wanted[tmp_path / there]["kardam"]}, tmp_path / there)
    before = contents(tmp_path / there, "kardam")
    finished = run(wanted)
    assert ran == [["a/async_sgd", "b/norm_clipping"]]
    assert all(set(finished[folder]) == set(cells) for folder, cells in wanted.items())
    assert contents(tmp_path / "a", "kardam") == contents(tmp_path / "b", "kardam") == before


def test_a_run_of_another_experiment_is_neither_taken_nor_replaced(tmp_path, ran, capsys):
    wanted = tables(tmp_path)
    other = {"kardam": tiny_grid(defense=["kardam"]).cells({"rounds": 30})["kardam"]}
    run_here(other, tmp_path / "b")
    before = contents(tmp_path / "b", "kardam")
    finished = run(wanted)
    assert finished == {tmp_path / "a": ["async_sgd", "kardam"], tmp_path / "b": ["norm_clipping"]}
    assert contents(tmp_path / "b", "kardam") == before
    assert "b/kardam failed" in capsys.readouterr().err
    alone = tmp_path / "alone"
    run_here(wanted[tmp_path / "a"], alone)
    assert contents(tmp_path / "a", "kardam") == contents(alone, "kardam")


def test_an_unfinished_run_of_another_experiment_is_left_to_who_began_it(tmp_path, ran, capsys):
    wanted = tables(tmp_path)
    run_here(tiny_grid(defense=["kardam"]).cells({"rounds": 30}), tmp_path / "b")
    begun = tmp_path / "b" / "kardam"
    (begun / "result.json").unlink()
    before = {file.name: file.read_bytes() for file in begun.iterdir()}
    finished = run(wanted)
    assert finished == {tmp_path / "a": ["async_sgd", "kardam"], tmp_path / "b": ["norm_clipping"]}
    assert {file.name: file.read_bytes() for file in begun.iterdir()} == before
    assert "rounds is 30 there" in capsys.readouterr().err


def test_a_run_that_has_got_on_in_one_place_goes_on_there(tmp_path, ran):
    wanted = tables(tmp_path)
    run_here({"kardam": wanted[tmp_path / "b"]["kardam"]}, tmp_path / "b")
    unfinished_run = tmp_path / "b" / "kardam"
    (unfinished_run / "result.json").rename(unfinished_run / CHECKPOINT)  # no real one
    run(wanted)
    assert ran[0] == ["a/async_sgd", "b/kardam", "b/norm_clipping"]


def test_a_copy_that_was_not_finished_is_made_again(tmp_path):
    wanted = tables(tmp_path)
    runs = MadeOnce(wanted)
    for folder, cells in wanted.items():
        runs.want(folder / "kardam", cells["kardam"])
    assert [*runs.cells] == ["a/kardam"]
    run_here(runs.cells, runs.folder)
    begun = tmp_path / "b" / "kardam"
    shutil.copytree(tmp_path / "a" / "kardam", begun)
    (begun / "result.json").rename(begun / "half")
    assert runs.end("a/kardam") == [tmp_path / "a" / "kardam", tmp_path / "b" / "kardam"]
    assert contents(tmp_path / "a", "kardam") == contents(tmp_path / "b", "kardam")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"kardam"}
    assert not (tmp_path / "b" / "kardam" / "half").exists()


def test_a_run_that_another_process_is_making_is_left_to_it(tmp_path, ran):
    """It is one more run to make: the engine waits for that process, and finds its result."""
    wanted = tables(tmp_path)
    runs = MadeOnce(wanted)
    for folder, cells in wanted.items():
        runs.want(folder / "kardam", cells["kardam"])
    run_here(runs.cells, runs.folder)
    begun = tmp_path / "b" / "kardam"
    shutil.copytree(tmp_path / "a" / "kardam", begun)
    (begun / "result.json").rename(tmp_path / "kept")
    with contextlib.closing(RunFolder(begun)):
        assert runs.end("a/kardam") == [tmp_path / "a" / "kardam"]
    assert [*runs.cells] == ["a/kardam", "b/kardam"]
    (tmp_path / "kept").rename(begun / "result.json")
    assert runs.end("b/kardam") == [begun]
    assert [path.name for path in begun.parent.iterdir()] == ["kardam"], "no half a copy"


def test_a_folder_that_is_no_run_is_never_replaced(tmp_path, ran, capsys):
    wanted = tables(tmp_path)
    mine = tmp_path / "b" / "kardam" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert run(wanted)[tmp_path / "b"] == ["norm_clipping"]
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]
    assert "b/kardam failed" in capsys.readouterr().err


def test_a_run_that_failed_leaves_nothing_in_any_place(tmp_path):
    wanted = tables(tmp_path)
    runs = MadeOnce(wanted)
    for folder, cells in wanted.items():
        runs.want(folder / "kardam", cells["kardam"])
    assert len(runs.end("a/kardam")) == 2
    assert not (tmp_path / "b").exists()
    late = tmp_path / "b" / "late"
    runs.want(late, wanted[tmp_path / "a"]["kardam"])
    assert runs.ended() == [late]
    assert runs.ended() == []


def test_a_folder_for_each_grid(tmp_path):
    one, two = tmp_path / "x" / "one.toml", tmp_path / "two.toml"
    assert [*grid_folders([one], None)] == [tmp_path.relative_to(tmp_path) / "runs" / "one"]
    assert grid_folders([one], tmp_path) == {tmp_path: one}
    assert grid_folders([one, two], tmp_path) == {tmp_path / "one": one, tmp_path / "two": two}
    with pytest.raises(ConfigError, match=r"two grids of one name; run one of them alone"):
        grid_folders([one, tmp_path / "one.toml"], None)


def test_the_command_takes_several_grids(cli):
    for name in ("one", "two"):
        grid = GRID.format(rounds=4).replace("[0]", "[0]" if name == "one" else "[0, 1]")
        (cli.folder / f"{name}.toml").write_text(grid)
    done = cli("sweep", "one.toml", "two.toml", "--workers", 1, "--out", "all")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "8/8 cells done, 0 failed"
    assert len([*(cli.folder / "all" / "one").glob("*/result.json")]) == 4
    assert len([*(cli.folder / "all" / "two").glob("*/result.json")]) == 8
    assert done.stdout.count("run folders: all/") == 2
