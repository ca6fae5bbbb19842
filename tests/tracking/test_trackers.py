"""What the trackers keep, read back with the real libraries, offline."""

import struct
import sys

import pytest
from tracking.watching import attacked

import secureafl
from secureafl.core.events import EvaluationEvent
from secureafl.runs.summary import flat_figures
from secureafl.tracking import TRACKERS
from secureafl.tracking.tracker import Tracker

CURVES = {"ter", "honest_accepted", "malicious_accepted"}


class Kept(Tracker):
    """Keeps what it would log."""

    def __init__(self):
        super().__init__()
        self.points = {}

    def open(self, run, settings):
        self.settings = settings
        return run.name

    def log(self, record, figures, round):
        self.points[round] = figures

    def close(self, record, figures, finished):
        self.final, self.finished = figures, finished


def run(out, *callbacks):
    return secureafl.run(attacked(), out, callbacks=callbacks)


def test_trackers_keep_curves_settings_and_the_result_by_the_names_of_tables(tmp_path):
    kept = Kept()
    result = run(tmp_path / "run", kept)
    assert kept.settings["seed"] == 0
    assert kept.settings["attack.kind"] == "sign_flip"
    assert kept.settings["attack.factor"] == 5.0
    assert [*kept.points] == list(result.history["round"])
    first, *others = kept.points.values()
    assert set(first) == {"ter"}  # before any upload
    assert all(set(figures) == CURVES for figures in others)
    last = {name: result.summary["uploads"][name]["share"] for name in ("honest", "malicious")}
    expected = {"ter": result.metrics["ter"]} | {f"{name}_accepted": last[name] for name in last}
    assert kept.points[40] == expected
    assert kept.final == {f"final/{k}": v for k, v in flat_figures(result.summary).items()}
    assert kept.final.keys() >= {f"final/{name}" for name in CURVES}
    assert kept.finished


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Runs with a tracker in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # and put back afterwards
    kept = Kept()
    return lambda kind: (run(tmp_path / "run", kept, TRACKERS[kind]()), kept)


def test_tensorboard_has_the_curves_and_the_result(recorded):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result, kept = recorded("tensorboard")
    found = EventAccumulator(str(result.path / "tensorboard")).Reload()
    assert {*found.Tags()["scalars"]} == CURVES | {*kept.final}
    curve = {point.step: point.value for point in found.Scalars("ter")}
    assert curve == pytest.approx({step: x["ter"] for step, x in kept.points.items()})
    (last,) = found.Scalars("final/ter_late_mean")
    assert last.value == pytest.approx(kept.final["final/ter_late_mean"])
    (settings,) = found.Tensors("settings/text_summary")
    assert b"| attack.kind | sign_flip |" in settings.tensor_proto.string_val[0]


def test_tensorboard_shows_a_run_that_was_stopped_and_went_on_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rounds in ((0, 10, 20), (0, 10)):  # the second time from a checkpoint before round 20
        tracker = TRACKERS["tensorboard"]()
        tracker.on_start(tmp_path, attacked())
        for round in rounds:
            tracker.on_event(tmp_path, EvaluationEvent(round, {"ter": 0.5, "asr": None}))
        tracker.on_end(tmp_path, None)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert found.Tags()["scalars"] == ["ter"]
    assert [point.step for point in found.Scalars("ter")] == [0, 10]


def test_mlflow_has_parameters_metrics_over_rounds_and_the_state(recorded):
    mlflow = pytest.importorskip("mlflow")
    result, kept = recorded("mlflow")
    client = mlflow.MlflowClient((result.path.parent / "mlruns").as_uri())
    place = client.get_experiment_by_name("secureafl").experiment_id
    (found,) = client.search_runs([place])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params == {name: str(value) for name, value in kept.settings.items()}
    assert found.data.tags["run_folder"] == str(result.path)
    points = client.get_metric_history(found.info.run_id, "malicious_accepted")
    wanted = {step: x["malicious_accepted"] for step, x in kept.points.items() if step}
    assert {point.step: point.value for point in points} == wanted
    assert {name: found.data.metrics[name] for name in kept.final} == kept.final


def wandb_records(path):
    """The records of an offline run: a log in blocks, of which a small one needs only the first."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    place, records = 7, []
    while place < min(len(data), 32768 - 7):
        _, length, whole = struct.unpack_from("<IHB", data, place)
        assert whole == 1
        records.append(Record.FromString(data[place + 7 : place + 7 + length]))
        place += 7 + length
    return records


def test_wandb_keeps_the_run_offline_with_config_history_and_summary(recorded):
    wandb = pytest.importorskip("wandb")
    result, kept = recorded("wandb")
    wandb.teardown()  # its process writes on after a run's end
    (path,) = result.path.glob("wandb/offline-run-*/*.wandb")
    records = wandb_records(path)
    (begun,) = (x.run for x in records if x.WhichOneof("record_type") == "run")
    assert (begun.project, begun.display_name) == ("secureafl", "run")
    config = {x.key: x.value_json for x in begun.config.update}
    assert config.items() >= {"attack.kind": '"sign_flip"', "seed": "0"}.items()
    history = [x.history for x in records if x.WhichOneof("record_type") == "history"]
    assert [x.step.num for x in history] == [*kept.points]
    names = {"/".join(item.nested_key) or item.key for x in history for item in x.item}
    assert names >= CURVES
    assert b"final/ter_late_mean" in path.read_bytes()


@pytest.mark.parametrize("kind", TRACKERS)
def test_missing_library_is_told_with_its_remedy(kind, monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, kind, None)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    remedy = rf"tracking with {kind} needs its library.*: pip install 'secureafl\[{kind}\]'"
    with pytest.raises(secureafl.ConfigError, match=remedy):
        TRACKERS[kind]()


def test_command_refuses_a_missing_library_before_it_begins(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for words in (["run"], ["compare", "--attacks", "none"]):
        said = cli.refused(*words, "tiny.toml", "--track", "wandb", "--out", "out")
        assert "pip install 'secureafl[wandb]'" in said
    assert not (cli.folder / "out").exists()


def test_command_tracks_runs_and_comparisons(cli, monkeypatch):
    pytest.importorskip("tensorboard")
    from redteam.small import engine_here

    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)
    for words in (["run", "--out", "one"], ["compare", "--defenses", "kardam", "--out", "many"]):
        code, _, said = cli.run_here(*words, "tiny.toml", "--track", "tensorboard", "--quiet")
        assert (code, said) == (0, "")
    assert [*cli.folder.glob("one/tensorboard/events.*")]
    assert [*cli.folder.glob("many/*/tensorboard/events.*")]
