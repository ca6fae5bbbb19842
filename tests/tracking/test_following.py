"""Callbacks are told everything once, and the runs do not notice."""

import itertools
import json

import pytest
import torch
from redteam.small import engine_here
from tracking.watching import Failing, Listener, attacked

import secureafl
from secureafl.core.events import EvaluationEvent, ForgottenEvent
from secureafl.runs.events import encode
from secureafl.simulation.run import start_run
from secureafl.tracking.following import Following


def test_callback_is_told_of_the_experiment_every_event_and_the_result(tmp_path):
    told = Listener()
    result = secureafl.run(attacked(), tmp_path / "run", callbacks=[told])
    assert told.started == {"run": attacked()}
    assert told.events["run"] == list(result.events())
    assert sum(isinstance(event, EvaluationEvent) for event in told.events["run"]) >= 4
    assert told.ended["run"] == result.summary


def test_callback_that_fails_is_told_no_more_and_leaves_the_run_as_it_is(tmp_path, capsys):
    failing, other = Failing(), Listener()
    secureafl.run(attacked(), tmp_path / "alone")
    result = secureafl.run(attacked(), tmp_path / "run", callbacks=[failing, other])
    files = [tmp_path / name / "events.jsonl" for name in ("alone", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(failing.events["run"]) == 5
    assert not failing.ended
    assert other.ended["run"] == result.summary
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "warning: Failing failed and is told no more of this: OSError: the disk is full"
    )


def test_run_that_goes_on_is_told_from_its_first_round_and_a_finished_one_not_again(tmp_path):
    turns = start_run(attacked(), tmp_path / "run", 60.0).turns()
    assert len(list(itertools.islice(turns, 15))) == 15
    turns.close()
    told, again = Listener(), Listener()
    result = secureafl.run(attacked(), tmp_path / "run", callbacks=[told])
    assert told.events["run"] == list(result.events())
    secureafl.run(attacked(), tmp_path / "run", callbacks=[again])
    assert not again.started


def test_every_run_of_a_grid_is_told_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)
    told, later = Listener(), Listener()
    axes = {"seed": [0, 1]}
    results = secureafl.run_grid(attacked(), axes, tmp_path, callbacks=[told])
    for run in results:
        assert told.started[run.name].seed == run.summary["seed"]
        assert told.events[run.name] == list(run.events())
        assert told.ended[run.name] == run.summary
    secureafl.run_grid(attacked(), {"seed": [0, 1, 2]}, tmp_path, callbacks=[later])
    assert [experiment.seed for experiment in later.started.values()] == [2]
    assert len(later.ended) == 1


@pytest.mark.slow
def test_runs_in_other_processes_are_told_as_well(tmp_path):
    told = Listener()
    results = secureafl.compare(
        attacked(), ["async_sgd", "kardam"], out=tmp_path, workers=2, callbacks=[told]
    )
    assert {run.name: run.summary for run in results} == told.ended
    for run in results:
        assert told.events[run.name] == list(run.events())


def test_fit_tells_callbacks(tmp_path):
    told = Listener()
    samples = torch.rand(20, 4), torch.arange(20) % 2
    model = torch.nn.Linear(4, 2)
    secureafl.fit(model, samples, clients=2, rounds=4, out=tmp_path / "run", callbacks=[told])
    assert told.ended["run"]["rounds"] == 4


def write(path, rounds):
    events = [ForgottenEvent(round, 0) for round in range(rounds)]
    path.mkdir(exist_ok=True)
    (path / "experiment.toml").touch()
    (path / "events.jsonl").write_bytes(b"".join(map(encode, events)))
    return events


def test_rounds_that_are_done_twice_are_told_once(tmp_path):
    told, run = Listener(), tmp_path / "run"
    with Following([told], {run: attacked()}, pytest.fail) as following:
        for rounds in (9, 4, 6, 12):  # killed, and begun again from a checkpoint
            events = write(run, rounds)
            following.look(run)
        (run / "result.json").write_text(json.dumps({"rounds": 12}))
        following.look(run)
    assert told.events["run"] == events
    assert told.ended == {"run": {"rounds": 12}}


def test_end_of_a_run_that_did_not_finish_is_told_too(tmp_path):
    told, runs = Listener(), {tmp_path / name: attacked() for name in ("begun", "waiting")}

    def stop():
        with Following([told], runs, pytest.fail) as following:
            write(tmp_path / "begun", 3)
            for run in runs:
                following.look(run)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert told.ended == {"begun": None}


def test_folder_that_cannot_be_read_is_told_of_and_left(tmp_path):
    told, run, said = Listener(), tmp_path / "run", []
    with Following([told], {run: attacked()}, said.append) as following:
        write(run, 0)
        (run / "events.jsonl").unlink()
        (run / "events.jsonl").mkdir()
        following.look(run)
        following.look(run)
    assert told.ended == {"run": None}
    (line,) = said
    assert line.startswith("warning: callbacks are told no more of run: ")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (Listener(), r"give a list, such as \[Listener\(\)\]"),
        ([Listener], r"Listener is a class; give Listener\(\)"),
        ([print], "is no secureafl.Callback"),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused_before_the_run(given, remedy, tmp_path):
    with pytest.raises(secureafl.ConfigError, match=remedy):
        secureafl.run(attacked(), tmp_path / "run", callbacks=given)
    assert not (tmp_path / "run").exists()
