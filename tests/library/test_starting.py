"""`secureafl init`, `secureafl export`, and how a run ends on the terminal."""

import re
import sys
from pathlib import Path

import pytest
import torch

from secureafl.runtime.trained_model import load_model

SHORT = ("--rounds", "300", "--set", "evaluation.late=1")


@pytest.fixture
def project(cli, monkeypatch):
    monkeypatch.syspath_prepend(cli.folder)
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    assert cli.run_here("init")[0] == 0
    yield cli
    sys.modules.pop("my_task", None)


def test_project_to_edit_runs_as_it_is_and_its_model_is_exported(project):
    code, _, err = project.run_here("run", "experiment.toml", *SHORT, "--out", "out")
    assert code == 0
    assert re.search(r"^finished: 300 rounds in [\d.]+ s$", err, re.MULTILINE)
    assert project.run_here("export", "out", "made/model.pt") == (0, "made/model.pt\n", "")
    made = torch.load(project.folder / "made" / "model.pt")
    model = load_model(project.folder / "out")
    assert made["inputs"] == torch.float32
    assert torch.equal(made["mean"], model.mean)
    trained = model.module.state_dict()
    assert made["state_dict"].keys() == trained.keys()
    assert all(torch.equal(made["state_dict"][name], value) for name, value in trained.items())


def test_init_says_what_to_do_next_and_replaces_nothing(cli):
    code, out, _ = cli.run_here("init", "new")
    assert code == 0
    assert out.endswith("cd new\nsecureafl run experiment.toml\n")
    (cli.folder / "new" / "my_task.py").write_text("mine")
    (cli.folder / "new" / "experiment.toml").unlink()
    assert "my_task.py: already there" in cli.refused("init", "new")
    assert [path.name for path in (cli.folder / "new").iterdir()] == ["my_task.py"]
    (cli.folder / "file").touch()
    assert "cannot be written" in cli.refused("init", "file/new")


def test_export_of_what_is_no_finished_run_is_refused_in_one_line(cli, make_run):
    assert "no such folder" in cli.refused("export", "nowhere", "model.pt")
    run = str(make_run("one", finished=False))
    assert "unfinished" in cli.refused("export", run, "model.pt")
    done = str(make_run("two"))
    assert "no model" in cli.refused("export", done, "model.pt")
    assert "one of .pt, .pt2, .onnx" in cli.refused("export", done, "model.zip")
    assert not Path(cli.folder, "model.pt").exists()
