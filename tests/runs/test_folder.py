import json
import os
import time

import numpy as np
import pytest
from simulation.small import tiny

from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.runs.events import read_events
from secureafl.runs.folder import RunFolder
from secureafl.runtime.records import stored_experiment
from secureafl.simulation.run import resume_run, start_run

ARRIVAL = ArrivalEvent(0, 3, True, 2, False, True, "lipschitz", {"lipschitz": 2.5, "x": None})
EVALUATION = EvaluationEvent(1, {"ter": 0.25})


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "seed = 1\n", {"sessions": []})
    yield folder
    folder.close()


def test_checkpoint_brings_back_every_array(folder):
    arrays = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(7),
        "empty": np.zeros(0),
        "flags": np.array([True, False]),
        "strided": np.arange(10.0)[::2],
    }
    folder.append([EVALUATION])
    folder.save_checkpoint(arrays, 5, 1.5)
    found = folder.load_checkpoint()
    assert (found.round, found.seconds) == (5, 1.5)
    assert found.events_bytes == (folder.path / "events.jsonl").stat().st_size
    assert set(found.tensors) == set(arrays)
    for name, array in arrays.items():
        assert found.tensors[name].shape == array.shape
        assert found.tensors[name].dtype == array.dtype
        assert (found.tensors[name] == array).all()


def test_rewinding_cuts_events_back_to_the_checkpoint(folder):
    folder.append([EVALUATION])
    folder.save_checkpoint({}, 1, 0.0)
    folder.append([ARRIVAL, ARRIVAL])
    folder.flush()
    folder.rewind(folder.load_checkpoint().events_bytes)
    folder.append([EVALUATION])
    folder.flush()
    assert list(read_events(folder.path)) == [EVALUATION, EVALUATION]


def test_pace_is_noted_at_the_start_and_then_once_a_second(folder, monkeypatch):
    now = time.monotonic()
    for seconds in (0.0, 0.2, 0.9, 1.5, 1.7, 4.0):
        monkeypatch.setattr("secureafl.runs.folder.time.monotonic", lambda s=seconds: now + s)
        folder.append([ARRIVAL._replace(round=int(10 * seconds))])
        folder.flush()
    lines = [json.loads(line) for line in (folder.path / "pace.jsonl").read_text().splitlines()]
    assert [line["rounds"] for line in lines] == [1, 16, 41]
    assert len({line["opened"] for line in lines}) == 1


def test_events_shorter_than_their_checkpoint_are_refused(folder):
    folder.append([EVALUATION, ARRIVAL])
    folder.save_checkpoint({}, 1, 0.0)
    os.truncate(folder.path / "events.jsonl", 10)
    with pytest.raises(RunError, match=r"shorter than its checkpoint; .* delete checkpoint"):
        folder.require_events(folder.load_checkpoint())


def test_events_that_were_altered_before_their_checkpoint_are_refused(folder):
    path = folder.path / "events.jsonl"
    for round in range(3):  # a checksum grows from checkpoint to checkpoint
        folder.append([ARRIVAL])
        folder.save_checkpoint({}, round, 0.0)
    folder.append([EVALUATION])
    folder.flush()
    folder.require_events(folder.load_checkpoint())  # what comes later is cut off anyway
    content = path.read_bytes()
    path.write_bytes(content.replace(b"2.5", b"3.5", 1))
    with pytest.raises(RunError, match="not what its checkpoint was made with; it was altered"):
        folder.require_events(folder.load_checkpoint())
    of_an_older_version = folder.load_checkpoint()._replace(events_checksum=None)
    folder.require_events(of_an_older_version)


def test_finishing_drops_the_checkpoint(folder):
    folder.save_checkpoint({}, 1, 0.0)
    folder.finish({"rounds": 1})
    assert folder.finished
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "events.jsonl",
        "experiment.toml",
        "provenance.json",
        "result.json",
    ]


def test_folder_is_for_one_process_at_a_time(folder):
    with pytest.raises(RunError, match="another process"):
        RunFolder(folder.path)


def test_failed_creation_leaves_nothing_behind(tmp_path):
    with pytest.raises(RunError):
        RunFolder.create(tmp_path / "run", "\ud800", {})
    assert list(tmp_path.iterdir()) == []


def test_disk_full_is_one_clear_line(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    folder.save_checkpoint({"a": np.ones(3)}, 1, 0.0)
    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(RunError, match="No space left on device"):
        folder.save_checkpoint({"a": np.zeros(3)}, 2, 0.0)
    assert folder.load_checkpoint().round == 1, "the old checkpoint must still be there"


def test_write_that_breaks_off_leaves_the_old_checkpoint(folder, monkeypatch):
    def half(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    folder.save_checkpoint({"a": np.ones(3)}, 1, 0.0)
    monkeypatch.setattr("safetensors.numpy.save_file", half)
    with pytest.raises(RunError, match="No space left on device"):
        folder.save_checkpoint({"a": np.zeros(3)}, 2, 0.0)
    assert folder.load_checkpoint().round == 1


@pytest.mark.parametrize("change", ["value", "name"])
def test_checkpoint_that_was_altered_is_refused(folder, change):
    folder.save_checkpoint({"a": np.arange(100.0), "b": np.zeros(3)}, 1, 0.0)
    path = folder.path / "checkpoint.safetensors"
    content = path.read_bytes()
    if change == "value":
        path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    else:
        path.write_bytes(content.replace(b'"b":', b'"c":'))
    with pytest.raises(RunError, match=r"damaged checkpoint \(checksum differs\); delete"):
        folder.load_checkpoint()


def test_result_that_cannot_be_written_leaves_the_checkpoint(folder):
    folder.save_checkpoint({}, 3, 0.0)
    with pytest.raises(ValueError, match="JSON"):
        folder.finish({"rounds": float("nan")})
    assert not folder.finished
    assert folder.load_checkpoint().round == 3


def test_nothing_but_the_run_folder_is_left_beside_it(folder):
    assert [path.name for path in folder.path.parent.iterdir()] == ["run"]


def test_others_may_read_what_a_run_leaves(folder):
    folder.save_model({"weights": np.ones(3)}, {"inputs": "float32"})
    assert (folder.path / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_resumed_run_says_so_in_its_provenance(folder):
    folder.add_session({"from_round": 4})
    folder.add_session({"from_round": 9})
    provenance = json.loads((folder.path / "provenance.json").read_text())
    assert provenance == {"sessions": [{"from_round": 4}, {"from_round": 9}]}


def test_simulation_of_an_earlier_version_goes_on_with_todays_defaults(tmp_path):
    experiment, path = tiny(clients=3, rounds=6, defense="kardam"), tmp_path / "run"
    recording = iter(start_run(experiment, path, 1e9))
    for _ in range(3):
        next(recording)
    recording.close()
    whole = (path / "experiment.toml").read_text()
    kept = [line for line in whole.splitlines() if not line.startswith("clip_norm")]
    (path / "experiment.toml").write_text("\n".join(kept))
    with pytest.raises(RunError, match="did not have the setting"):  # this version would have it
        stored_experiment(path)
    facts = json.loads((path / "provenance.json").read_text())
    facts["sessions"][0]["secureafl"] = "0.1.0"
    (path / "provenance.json").write_text(json.dumps(facts))
    for _ in resume_run(path, 1e9):
        pass
    assert (path / "experiment.toml").read_text() == whole
    (_, session) = json.loads((path / "provenance.json").read_text())["sessions"]
    assert session["settings_added"] == {"defense.clip_norm": experiment.defense.clip_norm}
