import json
import time

import numpy as np
import pytest

from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.runs.events import read_events
from secureafl.runs.folder import RunFolder

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
    with pytest.raises(RunError, match="shorter than its checkpoint"):
        folder.rewind(10)


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
