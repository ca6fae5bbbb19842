"""`secureafl theory`, in this process."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.reproduce.theory.bound import Constants
from secureafl.reproduce.theory.cases import Scope


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("theory") / "page"
    words = ["theory", "--seeds", "3", "--rounds", "100", "--clients", "5", "--out", str(out)]
    return CliRunner().invoke(app, words), out


def test_command_leaves_figures_a_picture_and_pages(made):
    done, out = made
    assert done.exit_code == 0, done.output
    assert "the bound holds in 9 of 9 runs" in done.output
    figures = json.loads((out / "theory.json").read_text())
    assert len(figures["results"]) == 14
    one = figures["results"][0]
    assert one["sides"].keys() == {"left", "mean", "track", "explicit"}
    assert len(one["counts"]) == len(one["sides"]["left"])
    assert {"smoothness", "heterogeneity", "noise", "estimation"} <= one["constants"].keys()
    assert ElementTree.fromstring((out / "theory.svg").read_bytes()).tag.endswith("svg")


def test_pages_show_every_case_inside_and_outside(made):
    _, out = made
    figures = json.loads((out / "theory.json").read_text())
    for page in ("README.md", "index.html"):
        text = (out / page).read_text()
        assert "Outside the conditions" in text
        assert all(one["title"] in text for one in figures["results"])
    assert "http" not in (out / "index.html").read_text().replace("data:image", "")[:3000]


def test_command_fails_when_the_bound_does(tmp_path, monkeypatch):
    first = Scope(clients=5, rounds=100).cases()[:1]
    monkeypatch.setattr(Scope, "cases", lambda scope: first)
    monkeypatch.setattr(Constants, "tracking_bound", 0.0)  # a wrong constant
    words = ["theory", "--seeds", "3", "--rounds", "100", "--clients", "5", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "BROKEN: it holds in 0 of 1 runs" in done.output
