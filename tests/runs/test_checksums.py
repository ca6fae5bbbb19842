"""What was altered in a run folder after its end is noticed, by whoever reads it."""

import json

import pytest
from simulation.small import tiny
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import RunError
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.messages import Answer
from secureafl.report.tables import read_run
from secureafl.runs.watch import Watch
from secureafl.simulation.run import resume_run, start_run


@pytest.fixture
def run(tmp_path):
    for _ in start_run(tiny(clients=3, rounds=6), tmp_path / "run", 1e9):
        pass
    return tmp_path / "run"


def alter(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def check(*paths):
    done = CliRunner().invoke(app, ["check", *map(str, paths)])
    return done.exit_code, done.output.strip()


def problems(run):
    watch = Watch(run)
    watch.refresh()
    return watch.problems


def test_intact_run_is_said_to_be_so(run):
    assert check(run) == (0, f"{run}: intact")
    assert problems(run) == []
    (run / "model.safetensors").unlink()  # results may be kept without it
    assert check(run) == (0, f"{run}: intact")


def test_line_in_the_middle_that_is_still_an_event_is_noticed(run):
    alter(run / "events.jsonl", b'"round": 3', b'"round": 4')
    code, said = check(run)
    assert (code, said) == (
        1,
        f"{run}/events.jsonl: altered since the run ended (its checksum differs)",
    )
    assert problems(run) == [said]
    with pytest.raises(RunError, match=r"events\.jsonl: altered since the run ended"):
        read_run(run)


def test_damaged_model_is_noticed_and_its_figures_are_still_read(run):
    content = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, said = check(run)
    assert (code, "model.safetensors: altered" in said) == (1, True)
    assert problems(run) == [said]
    assert read_run(run).result is not None


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("experiment.toml", b"clients = 3", b"clients = 4"),
        ("provenance.json", b"secureafl", b"SecureAFL"),
        ("holdings.json", b"[", b"[ "),
        ("pace.jsonl", b"rounds", b"ROUNDS"),
        ("result.json", b'"rounds": 6', b'"rounds": 7'),
    ],
)
def test_change_of_a_small_file_that_can_still_be_read_is_noticed(run, name, old, new):
    alter(run / name, old, new)
    said = f"{run}/{name}: altered since the run ended (its checksum differs)"
    assert check(run) == (1, said)
    assert problems(run) == [said]


@pytest.mark.parametrize("name", ["experiment.toml", "provenance.json", "holdings.json"])
@pytest.mark.parametrize("state", ["finished", "older", "unfinished"])
def test_small_file_that_cannot_be_read_is_told_once(run, name, state):
    result = json.loads((run / "result.json").read_text())
    if state == "older":
        result["checksums"] = {"events.jsonl": result["checksums"]["events.jsonl"]}
        del result["checksums_with_times"]
        (run / "result.json").write_text(json.dumps(result))
    elif state == "unfinished":
        (run / "result.json").unlink()
    (run / name).write_bytes((run / name).read_bytes()[:-9] + b"\xff")
    code, said = check(run)
    assert code == 1
    assert said.startswith(f"{run}/{name}: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("change", [b"1", b'NaN, "x": ', b'"\\ud800", "x": ', b"[" * 900])
def test_result_that_was_altered_is_not_reported(run, change):
    change += b"0.5" + b"]" * 900 + b', "y": ' if change[:1] == b"[" else b""
    alter(run / "result.json", b'"last": ', b'"last": ' + change)
    assert check(run)[0] == 1
    assert len(problems(run)) == 1
    with pytest.raises(RunError, match=r"result\.json: (altered since the run|cannot be read)"):
        read_run(run)


def test_page_that_is_open_notices_too_and_strange_checksums_harm_nobody(run):
    watch = Watch(run)
    watch.refresh()
    assert watch.problems == []
    with (run / "model.safetensors").open("ab") as file:
        file.write(b"x")
    watch.refresh()
    assert len(watch.problems) == 1
    result = json.loads((run / "result.json").read_text())
    for strange in (None, 3, {"../../etc/passwd": "0"}, {"events.jsonl": None}):
        changed = {**result, "checksums": strange, "checksums_with_times": None}
        (run / "result.json").write_text(json.dumps(changed))
        watch.refresh()
        assert len(watch.problems) == (strange == {"events.jsonl": None})


def test_run_of_a_version_without_checksums_and_an_unfinished_one_are_read_through(run):
    result = json.loads((run / "result.json").read_text())
    del result["checksums"]
    (run / "result.json").write_text(json.dumps(result))
    assert check(run)[0] == 0
    alter(run / "events.jsonl", b'"round": 3', b'"round": x')
    assert check(run)[0] == 1
    (run / "result.json").unlink()
    code, said = check(run)
    assert code == 1
    assert "events.jsonl, line" in said


def test_damage_of_a_deployed_run_is_told_and_left_as_it_is(tmp_path):
    server = Coordinator(tiny(clients=3))
    server.create(tmp_path / "run")
    server.open(tmp_path / "run")
    assert "another process is writing" in check(tmp_path / "run")[1]
    for number in range(3):
        server.receive(0, server.lend(), f"m{number}", Answer(server.weights.numpy(), False, ""))
    server.close()
    assert check(tmp_path / "run")[0] == 0
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert check(tmp_path / "run") == (
        1,
        f"{tmp_path}/run: checkpoint.safetensors is damaged; "
        "what was before it leads to the same state",
    )
    (tmp_path / "run" / "journal-0.bin").unlink()
    assert "rounds 0 to 2 were applied, but" in check(tmp_path / "run")[1]
    del before[tmp_path / "run" / "journal-0.bin"]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_an_unfinished_run_whose_events_were_altered_does_not_go_on(tmp_path):
    path = tmp_path / "run"
    recording = iter(start_run(tiny(clients=3, rounds=60), path, 0.0))
    for _ in range(40):
        next(recording)
    recording.close()  # which leaves a checkpoint
    assert check(path)[0] == 0
    alter(path / "events.jsonl", b'"round": 3', b'"round": 4')
    said = f"{path}/events.jsonl: not what its checkpoint was made with; it was altered"
    assert check(path)[1].startswith(said)
    with pytest.raises(RunError, match="not what its checkpoint was made with"):
        resume_run(path, 1e9)
    (path / "checkpoint.safetensors").unlink()  # as it says
    for _ in resume_run(path, 1e9):
        pass
    assert check(path)[0] == 0
