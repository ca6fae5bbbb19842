"""An operator's view: each state of a client, and the reason for it."""

import json

import pytest
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent
from secureafl.deployment.nodes import Node, write_nodes
from secureafl.deployment.overview import make_overview
from secureafl.deployment.roster import CLIENTS, ClientRecord, Roster, read_roster
from secureafl.deployment.slots import SlotRegistry
from secureafl.experiment import from_mapping

NOW = 1000.0


@pytest.fixture
def run(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "experiment.toml").touch()

    def write(*records, finished=False, nodes=(), **more):
        facts = {"round": 12, "rounds": 40, "finished": finished, "slots": 4, "tell": "summary"}
        facts |= more
        clients = [ClientRecord(**{"node": 7, "client": 0, "here": True} | r) for r in records]
        fields = {**facts, "clients": [record._asdict() for record in clients]}
        (tmp_path / CLIENTS).write_text(json.dumps(fields))
        write_nodes(tmp_path, nodes)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("record", "state", "why"),
    [
        ({"uploads": 3, "recent": ["", "", ""]}, "in", ""),
        ({"here": False}, "gone", "not connected"),
        ({"client": None}, "no slot", "all 4 slots are taken"),
        (
            {"pause": "rate", "until": NOW + 30},
            "slowed",
            "answers too fast; next model in 30 s",
        ),
        (
            {"pause": "failures", "until": NOW + 8, "last_dropped": "wrong_shape"},
            "slowed",
            "its answers fail (wrong_shape); next model in 8 s",
        ),
        (
            {"pause": "failures", "until": NOW + 8, "recent": ["norm"], "last_dropped": "failed"},
            "slowed",
            "its answers fail (failed); next model in 8 s",
        ),
        (
            {"recent": [""], "dropped": {"not_finite": 3}, "last_dropped": "not_finite"},
            "not counted",
            "not used: 3 not_finite",
        ),
        ({"dropped": {"not_finite": 3}}, "in", "not used: 3 not_finite"),
        ({"asked": NOW - 300}, "silent", "was sent a model 300 s ago"),
        ({"asked": NOW - 20}, "in", ""),
        (
            {"recent": ["", "norm", "norm", "angle"]},
            "not counted",
            "not accepted of its last 4: 2 norm, 1 angle",
        ),
        ({"recent": ["", "", "", "norm"]}, "in", "not accepted of its last 4: 1 norm"),
        ({"recent": ["norm", "norm", "norm", ""]}, "in", "not accepted of its last 4: 3 norm"),
        ({"dropped": {"late": 2}}, "in", "not used: 2 late"),
    ],
)
def test_state_and_reason_come_from_what_was_written_down(run, record, state, why):
    (row,) = make_overview(run(record), NOW).rows
    assert (row.state, row.why) == (state, why)


def test_names_are_those_of_keys_and_keys_that_never_came_are_listed(run):
    nodes = [Node(7, "ada", False), Node(8, "ben", True), Node(9, "cleo", False)]
    found = make_overview(run({}, {"node": 8, "here": False}, {"node": 5}, nodes=nodes), NOW)
    assert [(row.name, row.state) for row in found.rows] == [
        ("ada", "in"),
        ("node 5", "in"),
        ("cleo", "absent"),
        ("ben", "out"),
    ]
    assert found.counts() == {"in": 2, "absent": 1, "out": 1}


@pytest.mark.parametrize(
    ("still", "finished", "told"), [(8, False, 0), (9, False, 1), (9, True, 0)]
)
def test_a_model_that_stands_still_is_told(run, still, finished, told):
    path = run({"uploads": 7}, {"node": 8, "client": 1}, still=still, finished=finished)
    done = CliRunner().invoke(app, ["clients", str(path)], env={"COLUMNS": "160"})
    said = "the model has not moved for 9 uploads: 1 of 4 clients have uploaded"
    assert " ".join(done.output.split()).count(said) == told


def test_uploads_since_the_model_last_moved_are_counted(tmp_path):
    experiment = from_mapping({"clients": 4, "rounds": 40})
    (tmp_path / "server").mkdir()
    roster = Roster(tmp_path, experiment, SlotRegistry(tmp_path, 4, 0), "summary")

    def arrival(number, stepped):
        return ArrivalEvent(number, 0, False, 0, True, stepped, "", {})

    def found():
        roster._written = -1e9
        roster.write(12, False, [], [], {})
        return read_roster(tmp_path).still

    roster.recount([arrival(n, stepped=n == 1) for n in range(5)])
    assert found() == 3
    roster.count(7, arrival(5, stepped=False))
    assert found() == 4
    roster.count(7, arrival(6, stepped=True))
    assert found() == 0


def test_before_the_server_has_begun_nobody_is_there(tmp_path):
    assert make_overview(tmp_path, NOW).rows == []


@pytest.mark.parametrize("words", [[], ["--follow"]])
def test_command_prints_the_view_and_leaves_at_the_end(run, words):
    recent = ["", "norm", "norm", "norm"]
    path = run({"recent": recent, "uploads": 4, "accepted": 1}, finished=True)
    (path / "result.json").write_text("{}")
    done = CliRunner().invoke(app, ["clients", str(path), *words], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "round 12 of 40; 1 not counted; finished" in done.output
    assert "not accepted of its last 4: 3 norm" in done.output


def test_command_says_that_no_server_is_at_work(run):
    done = CliRunner().invoke(app, ["clients", str(run({}))], env={"COLUMNS": "120"})
    assert "no server is at work" in done.output


@pytest.mark.parametrize("served", [True, False])
def test_command_says_that_there_is_nothing_to_see_yet(run, monkeypatch, served):
    path = run(nodes=[Node(7, "ada", False)])
    (path / CLIENTS).unlink()
    monkeypatch.setattr("secureafl.deployment.liveness.is_served", lambda _: served)
    done = CliRunner().invoke(app, ["clients", str(path)], env={"COLUMNS": "120"})
    said = "the server is starting" if served else "no server yet"
    assert f"{said}; 1 absent" in done.output


def test_command_needs_a_served_run(tmp_path):
    for words in ([], ["--follow"]):
        done = CliRunner().invoke(app, ["clients", str(tmp_path), *words])
        assert isinstance(done.exception, RunError)
