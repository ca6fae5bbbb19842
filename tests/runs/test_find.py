"""The report, `results` and the dashboard see the same runs."""

import os
from pathlib import Path

import pytest

from secureafl.cli.screen import runs_in
from secureafl.core.errors import RunError
from secureafl.dashboard.runs import Runs
from secureafl.report.tables import read_runs
from secureafl.runs.find import find_runs, search
from secureafl.runs.query import results_table


@pytest.fixture
def tree(make_run, tmp_path) -> Path:
    """Runs one, two and four folders deep, beside folders that are none."""
    for name in ("one", "deep/two", "deep/er/still/four"):
        make_run(name)
    make_run(".half-made")
    make_run("deep/.killed/inside")
    root = tmp_path / "runs"
    (root / "notes").mkdir()
    (root / "notes" / "experiment.toml").mkdir()
    (root / "report").mkdir()
    (root / "report" / "index.html").touch()
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "events.jsonl").touch()
    (root / "experiment.toml.bak").touch()
    return root


def seen(root: Path) -> dict[str, list[str]]:
    """The runs in a folder by who looks for them."""
    rows = results_table([root]).query("select run from runs").rows
    paths = {
        "report": [run.path for run in read_runs(runs_in([root]))],
        "results": [Path(run) for (run,) in rows],
    }
    found = {who: [str(path.relative_to(root)) for path in runs] for who, runs in paths.items()}
    return {**found, "dashboard": Runs(root).names()}


def test_report_results_and_dashboard_see_the_same_runs(tree):
    pytest.importorskip("duckdb")
    wanted = ["deep/er/still/four", "deep/two", "one"]
    assert seen(tree) == dict.fromkeys(("report", "results", "dashboard"), wanted)


def test_what_lies_inside_a_run_belongs_to_it(make_run, tmp_path):
    outer = make_run("outer")
    make_run("outer/inner")
    assert search(tmp_path).runs == [outer]
    assert search(outer).runs == [outer]
    assert Runs(outer).names() == ["outer"]


def test_links_are_followed_and_a_run_is_known_by_its_own_name(tree, tmp_path):
    for name in ("a-link", "z-link"):
        (tree / name).symlink_to(tree / "one")
    (tree / "deep" / "loop").symlink_to(tree)
    before = search(tree)
    assert [path.name for path in before.runs] == ["four", "two", "one"]
    (tmp_path / "aside").mkdir()
    (tree / "one").rename(tmp_path / "aside" / "moved")
    (tree / "a-link").unlink()
    (tree / "a-link").symlink_to(tmp_path / "aside")
    assert tree / "a-link" / "moved" in search(tree).runs
    assert before.unreadable == []


def test_folders_that_cannot_be_read_are_left_out_and_named(tree, monkeypatch, capsys):
    (tree / "itself").symlink_to(tree / "itself")

    def refuse(path, scandir=os.scandir):
        if Path(path).name == "er":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("secureafl.runs.find.os.scandir", refuse)
    assert [run.name for run in runs_in([tree])] == ["two", "one"]
    told = capsys.readouterr().err
    assert f"note: {tree}/deep/er: cannot be read (Permission denied), so it is left out" in told
    assert f"note: {tree}/itself: cannot be read" in told
    listing = Runs(tree).listing()
    assert [run["name"] for run in listing["runs"]] == ["deep/two", "one"]
    assert [line.partition(":")[0] for line in listing["unreadable"]] == [
        f"{tree}/deep/er",
        f"{tree}/itself",
    ]


def test_each_run_is_found_once_in_the_order_of_the_folders(tree):
    found = find_runs([tree / "one", tree, tree / "deep" / ".." / "deep"])
    assert [run.name for run in found.runs] == ["one", "four", "two"]


def test_folder_without_runs_and_missing_folder_are_refused(tree):
    with pytest.raises(RunError, match=r"notes: no run folder in it; .*secureafl run"):
        find_runs([tree, tree / "notes"])
    with pytest.raises(RunError, match="nothing: no such folder"):
        find_runs([tree / "nothing"])


def test_dashboard_survives_the_loss_of_its_folder(tree, monkeypatch):
    monkeypatch.setattr("secureafl.dashboard.runs._SEARCH_SECONDS", 0.0)
    monkeypatch.setattr("secureafl.dashboard.runs._SEARCH_SHARE", 0)
    runs = Runs(tree)
    before = runs.names()
    tree.rename(tree.with_name("moved"))
    assert runs.names() == before
    assert "no such folder" in runs.listing()["unreadable"][0]
