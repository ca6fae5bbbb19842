"""Nothing that was applied is lost, wherever a kill comes."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from deployment.replay import replayed_weights
from deployment.served import (
    Clients,
    begun,
    closed,
    opened,
    refused_answer,
    same_state,
    state_of,
)
from simulation.small import tiny
from simulation.spies import Surroundings
from stepping import threads

from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.core.server import name_changing
from secureafl.deployment import coordinator as module
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.journal import Removal, journals, pack, read_journal
from secureafl.deployment.messages import REFUSALS, Answer
from secureafl.deployment.recovery import BEFORE
from secureafl.deployment.secret import SECRET
from secureafl.report.page import write_report
from secureafl.runs.events import read_events
from secureafl.runs.layout import EVENTS, read_json
from secureafl.runs.query import results_table
from secureafl.runtime.records import stored_experiment

EXPERIMENT = tiny(
    clients=4, rounds=9, attack={"kind": "sign_flip", "factor": 10.0}, malicious=1, forget_after=4
)


@pytest.fixture(autouse=True)
def _no_git(monkeypatch):
    monkeypatch.setattr("secureafl.runtime.records._commit", lambda: None)


class Killed(BaseException):
    """Stands for SIGKILL."""


class Killer:
    """Kills at one of the moments at which the disk changes, and keeps what is on it then."""

    def __init__(self, monkeypatch, folder, copy):
        self.count, self.at = 0, -1
        self._folder, self._copy = folder, copy
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, inner):
        def call(*words, **more):
            self._moment()
            return inner(*words, **more)

        return call

    def _moment(self):
        if self.count == self.at:
            self.count += 1  # copying opens files, too
            shutil.copytree(self._folder, self._copy)
            raise Killed
        self.count += 1


def run_until_killed(path, killer, moment):
    """States after each round that was acknowledged."""
    server, states = Coordinator(EXPERIMENT), []
    server.create(path)
    killer.count, killer.at = 0, moment
    with contextlib.suppress(Killed), closed(server):
        server.open(path)
        states.append(state_of(server))
        clients = Clients(EXPERIMENT)
        while not server.finished:
            clients.turn(server)
            states.append(state_of(server))
            if server.round in (3, 6):
                server.save()
    return states


# A file that was being opened is closed by nobody but the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_kill_at_every_change_of_the_disk_loses_no_applied_round(tmp_path, monkeypatch):
    run, copy = tmp_path / "run", tmp_path / "copy"
    monkeypatch.setattr("secureafl.runs.folder._PACE_SECONDS", 1e9)  # the same moments every time
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)  # what the defence draws, too
    with monkeypatch.context() as patch:
        killer = Killer(patch, run, copy)
        reference = run_until_killed(run, killer, -1)
        moments = killer.count
    assert moments > 30
    whole = (run / EVENTS).read_bytes()
    for moment in range(moments):
        shutil.rmtree(run)
        shutil.rmtree(copy, ignore_errors=True)
        with monkeypatch.context() as patch:
            acknowledged = len(run_until_killed(run, Killer(patch, run, copy), moment)) - 1
        with closed(opened(EXPERIMENT, copy)) as server:
            same_state(state_of(server), reference[server.round])
            assert server.round in (max(0, acknowledged), acknowledged + 1)
        assert whole.startswith((copy / EVENTS).read_bytes())


DRAWING = {"kind": "trust_clipping", "sketch_size": 16}  # its state differs from seed to seed


@pytest.mark.parametrize("defense", ["secure_afl", DRAWING])
def test_killed_again_and_again_the_run_ends_as_its_replay(tmp_path, defense):
    settings = {"clients": 4, "rounds": 24, "malicious": 1, "forget_after": 6}
    experiment = tiny(**settings, attack="gaussian", defense=defense)
    path, rng = tmp_path / "run", np.random.default_rng(3)
    server, clients = begun(experiment, path), Clients(experiment)
    while not server.finished:
        clients.turn(server)
        if rng.random() < 0.3:
            before = state_of(server)
            with closed(server):
                pass
            server, clients.lent = opened(experiment, path), {}
            same_state(state_of(server), before)
        elif rng.random() < 0.1:
            server.save()
    server.close()
    assert torch.equal(replayed_weights(path), server.weights)
    assert not list(path.glob("journal*"))
    assert not read_json(path / "result.json")["refused"].keys() & REFUSALS
    assert write_report([path], tmp_path / "report").is_file()


@pytest.mark.parametrize("defense", ["secure_afl", DRAWING])
@pytest.mark.parametrize("saved", [(), (4,), (4, 4), (3, 4)], ids=str)
def test_removed_client_is_forgotten_and_the_journal_leads_to_the_same_bits(
    tmp_path, defense, saved
):
    experiment, path = tiny(clients=4, rounds=24, defense=defense), tmp_path / "run"
    server, clients = begun(experiment, path), Clients(experiment)
    for node in (5, 6, 7, 8):
        server.slots.assign(node, 0)
    for number in range(8):
        clients.turn(server)
        if number == 3:
            if 3 in saved:
                server.save()
            before = state_of(server)
            assert server.remove(6) == [ForgottenEvent(4, 1)]
            assert server.remove(6) == []
            forgotten = server._server.forget(opened_copy(experiment, path, tmp_path, before), 1)
            same_state((4, before[1], name_changing(forgotten)), state_of(server))
            for _ in range(saved.count(4)):
                server.save()
            assert server.slots.assign(9, 4) == 1
    reached, events = state_of(server), (path / EVENTS).read_bytes()
    with closed(server):
        pass
    with closed(opened(experiment, path)) as again:
        same_state(state_of(again), reached)
        assert again.slots.slot(9) == 1
        assert again.slots.slot(6) is None
    assert (path / EVENTS).read_bytes() == events
    (path / "checkpoint.safetensors").unlink(missing_ok=True)
    if (path / BEFORE).exists() or not saved:
        with closed(opened(experiment, path)) as again:
            same_state(state_of(again), reached)


def opened_copy(experiment, path, folder, before):
    """The state before a client was removed, as a folder without that record leads to it."""
    copy = shutil.copytree(path, folder / "copy")
    number, journal = max(journals(copy).items())
    content = read_journal(journal, number)
    assert isinstance(content.records[-1], Removal)
    os.truncate(journal, journal.stat().st_size - len(pack(content.records[-1])))
    with closed(opened(experiment, copy)) as server:
        same_state(state_of(server), before)
        return server._state


def test_results_know_a_run_that_no_server_app_has_opened_yet(tmp_path):
    Coordinator(EXPERIMENT).create(tmp_path / "run")
    answer = results_table([tmp_path]).query("select rounds, finished, started from runs")
    assert answer.rows == [(9, False, None)]


def test_checkpoint_is_made_when_the_journal_outgrows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SMALL_JOURNAL", 0)
    monkeypatch.setattr(Coordinator, "_state_bytes", lambda _: 5000)
    experiment = tiny(clients=4, rounds=60)
    with closed(begun(experiment, tmp_path / "run")) as server:
        clients = Clients(experiment)
        for _ in range(50):
            clients.turn(server)
            found = journals(tmp_path / "run")
            assert len(found) <= 2  # that of the checkpoint, and of the one before it
            assert found[max(found)].stat().st_size <= 5000
        assert min(found) > 0


def test_model_after_training_counts_as_the_step_towards_it(tmp_path):
    experiment = tiny(clients=4, defense="async_sgd")
    with closed(begun(experiment, tmp_path / "run")) as server:
        wanted = server.weights.numpy() + 0.25
        server.receive(0, server.lend(), "m", Answer(wanted, True, ""))
        np.testing.assert_allclose(server.weights.numpy(), wanted, rtol=1e-6)


def test_trained_model_out_of_reach_is_refused(tmp_path):
    with closed(begun(tiny(clients=4), tmp_path / "run")) as server:
        before = server.weights.clone()
        far = np.full(before.numel(), 3e38, np.float32)
        assert server.receive(0, server.lend(), "m", Answer(far, True, "")) == "not_finite"
        assert torch.equal(server.weights, before)


def test_refused_answers_are_no_rounds_and_leave_nothing_behind(tmp_path):
    path = tmp_path / "run"
    with closed(begun(EXPERIMENT, path)) as server:
        clients = Clients(EXPERIMENT)
        clients.turn(server)
        before, files = state_of(server), {p: p.read_bytes() for p in path.rglob("*.*")}
        reasons = [
            refused_answer(server, 0, server.lend(), number)
            for number in (np.nan, np.inf, 1e30) * 20
        ]
        assert reasons == ["not_finite", "not_finite", "too_large"] * 20
        same_state(state_of(server), before)
        assert {p: p.read_bytes() for p in path.rglob("*.*")} == files
        while not server.finished:
            clients.turn(server)
        server.close()
    rounds = [event.round for event in read_events(path) if isinstance(event, ArrivalEvent)]
    assert rounds == list(range(EXPERIMENT.rounds))


def test_server_and_clients_leave_the_process_its_threads_and_kernels(tmp_path):
    defense = {"kind": "simulation.spies:Surroundings", "name": "deployed"}
    experiment = tiny(clients=4, threads=2, kernels="reference", defense=defense, forget_after=1)
    Surroundings.seen.clear()
    with threads(1), closed(begun(experiment, tmp_path / "run")) as server:
        clients = Clients(experiment)
        for _ in range(6):
            clients.turn(server)
            assert torch.get_num_threads() == 1
        with closed(server):
            pass
        with closed(opened(experiment, tmp_path / "run")):
            assert torch.get_num_threads() == 1
    assert Surroundings.seen == {"deployed": {("reference", 2)}}


def test_claims_about_samples_are_not_believed():
    with pytest.raises(ConfigError, match="only clients could say"):
        Coordinator(tiny(client_weighting="samples"))


def test_folder_of_another_experiment_is_refused(tmp_path):
    Coordinator(EXPERIMENT).create(tmp_path / "run")
    with pytest.raises(RunError, match="other settings"):
        Coordinator(tiny(clients=5)).open(tmp_path / "run")


def without_setting(path, name):
    """A run folder as a version that did not have a setting left it."""
    file = path / "experiment.toml"
    lines = file.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name} =")]
    assert len(kept) == len(lines) - 1
    file.write_text("\n".join(kept))
    facts = read_json(path / "provenance.json")
    facts["sessions"][0]["secureafl"] = "0.1.0"
    (path / "provenance.json").write_text(json.dumps(facts))


def test_setting_that_a_later_version_added_does_not_end_an_unfinished_run(tmp_path):
    experiment, path = tiny(clients=4, rounds=9, defense="kardam"), tmp_path / "run"
    server, clients = begun(experiment, path), Clients(experiment)
    for _ in range(4):
        clients.turn(server)
    server.close()
    whole, made = ((path / name).read_text() for name in ("experiment.toml", "provenance.json"))
    without_setting(path, "clip_norm")
    lost = shutil.copytree(path, tmp_path / "lost")
    (lost / "provenance.json").write_text(made)  # this version would have written the setting
    with pytest.raises(RunError, match=r"did not have the setting 'defense\.clip_norm'"):
        Coordinator(experiment).open(lost)
    other = tiny(clients=4, rounds=9, defense={"kind": "kardam", "clip_norm": 3.0})
    with pytest.raises(RunError, match="other settings"):
        Coordinator(other).open(path)
    server, clients.lent = opened(experiment, path), {}
    assert (path / "experiment.toml").read_text() == whole
    added = [session.get("settings_added") for session in sessions(path)]
    assert added == [None, {"defense.clip_norm": experiment.defense.clip_norm}]
    while not server.finished:
        clients.turn(server)
    server.close()
    stored_experiment(path)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_killed_server_goes_on_with_the_optimizers_state(tmp_path, kind):
    optimizer = {"kind": kind, **({"momentum": 0.9} if kind == "sgd" else {})}
    experiment = tiny(
        clients=4,
        rounds=9,
        defense="trust_clipping",
        server_optimizer=optimizer,
        server_schedule={"shape": "cosine"},
    )
    path = tmp_path / "run"
    with closed(begun(experiment, path)) as server:
        clients = Clients(experiment)
        for number in range(6):
            clients.turn(server)
            if number == 3:
                server.save()  # so that two rounds are in the journal alone
        left = state_of(server)
    assert any(name.startswith("optimizer") for name in left[2])
    server, clients.lent = opened(experiment, path), {}
    same_state(state_of(server), left)
    while not server.finished:
        clients.turn(server)
    final = server.weights.clone()
    server.close()
    assert torch.equal(replayed_weights(path), final)


def sessions(path):
    return read_json(path / "provenance.json")["sessions"]


def test_checkpoint_of_a_defence_that_kept_less_names_the_version(tmp_path, monkeypatch):
    path = tmp_path / "run"
    with closed(begun(EXPERIMENT, path)) as server:
        Clients(EXPERIMENT).turn(server)
        server.save()
    monkeypatch.setattr(module, "rebuild", lambda *_: {}["defense.new"])
    said = r"its checkpoint lacks 'defense.new'.*the version that began it \(\d+\.\d+\.\d+\)"
    with pytest.raises(RunError, match=said):
        opened(EXPERIMENT, path)


def test_two_servers_cannot_work_on_one_folder(tmp_path):
    with (
        closed(begun(EXPERIMENT, tmp_path / "run")),
        pytest.raises(RunError, match="another process"),
    ):
        Coordinator(EXPERIMENT).open(tmp_path / "run")


def test_what_the_defence_drew_is_private_and_not_drawn_again(tmp_path):
    experiment, path = tiny(clients=4, rounds=24, defense=DRAWING), tmp_path / "run"
    server, clients = begun(experiment, path), Clients(experiment)
    assert (path / SECRET).stat().st_mode & 0o777 == 0o600
    drawn = server._state.defense.sketch.order.clone()
    clients.turn(server)
    with closed(server):
        pass
    with closed(opened(experiment, path)) as again:
        assert torch.equal(again._state.defense.sketch.order, drawn)
    (path / SECRET).write_text("?")
    with pytest.raises(RunError, match="secret: damaged; put it back from a copy"):
        opened(experiment, path)
    (path / SECRET).unlink()
    with pytest.raises(RunError, match="secret: missing; put it back from a copy"):
        opened(experiment, path)
