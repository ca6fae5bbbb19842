"""`secureafl serve`, `join` and `keys` as typed; what they keep running is tested elsewhere."""

import pytest
from simulation.small import tiny
from typer.testing import CliRunner

from secureafl.cli import deploy
from secureafl.cli.app import app
from secureafl.core.errors import ConfigError, RunError
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.messages import Answer
from secureafl.deployment.options import Options, read_file
from secureafl.deployment.processes import free_port
from secureafl.experiment import from_mapping

TASK = {"kind": "reference.tiny_task:TinyTask"}
EXPERIMENT = f'clients = 3\n[task]\nkind = "{TASK["kind"]}"\n'


def refused(*words):
    """The error that a command ends with."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert isinstance(done.exception, ConfigError | RunError), done.output
    return str(done.exception)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


def test_server_off_loopback_needs_certificates(file):
    message = refused("serve", file, "--address", "0.0.0.0:8000")
    assert "--certificates" in message
    assert "--insecure" in message


def test_client_of_a_server_elsewhere_needs_certificate_and_key():
    message = refused("join", "--server", "learn.example.org:8000")
    assert "--ca" in message
    assert "--key" in message


def test_wrong_setting_of_a_deployment_is_named(file):
    file.write_text(EXPERIMENT + "[deployment]\ndeadlin = 3.0\n")
    assert "did you mean 'deadline'?" in refused("serve", file)


@pytest.mark.parametrize("words", ["deadline = 0.0", "answers_per_minute = 0", "metrics_port = -1"])
def test_setting_out_of_range_is_refused(file, words):
    file.write_text(EXPERIMENT + f"[deployment]\n{words}\n")
    assert words.split()[0] in refused("serve", file)


def test_experiment_and_options_come_from_one_file(file):
    file.write_text(EXPERIMENT + "[deployment]\ndeadline = 5.0\n")
    experiment, options = read_file(file)
    assert experiment.clients == 3
    assert options == Options(deadline=5.0)


def test_finished_run_is_not_served_again(file, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    done = CliRunner().invoke(app, ["serve", str(file), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0
    assert "finished" in done.output


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_who_serves_fewer_than_three_clients_is_warned(file, tmp_path, monkeypatch, clients):
    def service(*_):
        raise ConfigError("not today")

    monkeypatch.setattr("secureafl.deployment.serve.Service", service)
    file.write_text(EXPERIMENT.replace("clients = 3", f"clients = {clients}"))
    done = CliRunner().invoke(app, ["serve", str(file), "--out", str(tmp_path / "run")])
    assert ("no defence can tell who is malicious" in done.output) == (clients < 3)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_resume_leaves_a_deployed_run_alone(tmp_path, checkpoint):
    path, experiment = tmp_path / "run", tiny(clients=3)
    server = Coordinator(experiment)
    server.create(path)
    server.open(path)
    server.receive(0, server.lend(), "m", Answer(server.weights.numpy(), False, ""))
    if checkpoint:
        server.save()
    server._journal.close()
    server.folder.close()
    before = contents(path)
    assert "secureafl serve" in refused("resume", path)
    assert contents(path) == before


def test_simulated_run_is_not_served(file, tmp_path):
    done = CliRunner().invoke(app, ["run", str(file), "--rounds", "2", "--out", f"{tmp_path}/run"])
    assert done.exit_code == 0
    (tmp_path / "run" / "result.json").unlink()
    before = contents(tmp_path / "run")
    file.write_text("rounds = 2\n" + EXPERIMENT)
    assert "holds a simulation" in refused("serve", file, "--out", tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_wrong_attack_of_a_test_client_is_named():
    assert "unknown attack" in refused("join", "--server", "127.0.0.1:1", "--attack", "sign_flop")
    words = ("join", "--server", "127.0.0.1:1", "--attack", "sign_flip", "--set", "factor=3")
    assert "attack.factor=10" in refused(*words)


def test_keys_by_command(tmp_path):
    runner, key = CliRunner(), tmp_path / "alice"
    (tmp_path / "run" / "server").mkdir(parents=True)
    run = ["--run", str(tmp_path / "run")]
    assert runner.invoke(app, ["keys", "make", str(key)]).exit_code == 0
    assert runner.invoke(app, ["keys", "register", f"{key}.pub", *run]).exit_code == 0
    assert (tmp_path / "run" / "server" / "keys" / "alice.pub").is_file()
    assert runner.invoke(app, ["keys", "revoke", "alice", *run]).exit_code == 0
    assert not (tmp_path / "run" / "server" / "keys" / "alice.pub").exists()
    assert runner.invoke(app, ["keys", "ca", str(tmp_path / "certs")]).exit_code == 0
    assert "no such run folder" in refused(
        "keys", "register", f"{key}.pub", "--run", tmp_path / "no"
    )


@pytest.mark.parametrize("words", [["serve", "x.toml"], ["join", "--server", "a:1"]])
def test_without_flower_the_extra_is_named(monkeypatch, words):
    monkeypatch.setattr(deploy.importlib.util, "find_spec", lambda _: None)
    assert "secureafl[deploy]" in refused(*words)


@pytest.mark.parametrize("words", [["serve"], ["join"], ["backup"], ["keys", "make"]])
def test_help_shows_an_example(words):
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert "Example:" in done.output


def test_damaged_run_is_told_by_serve_itself(file, tmp_path):
    path = tmp_path / "run"
    server = Coordinator(from_mapping({"clients": 3, "task": TASK}))
    server.create(path)
    server.open(path)
    server.receive(0, server.lend(), "m", Answer(server.weights.numpy(), False, ""))
    server._journal.close()
    server.folder.close()
    (path / "journal-0.bin").unlink()
    words = ("serve", file, "--out", path, "--address", f"127.0.0.1:{free_port()}")
    assert "rounds 0 to 0 were applied, but journal-0.bin is missing" in refused(*words)
    assert "--accept-loss" in refused(*words)


def test_run_is_copied_by_command(tmp_path):
    Coordinator(tiny(clients=3)).create(tmp_path / "run")
    done = CliRunner().invoke(app, ["backup", f"{tmp_path}/run", f"{tmp_path}/copy"])
    assert "after 0 rounds" in done.output
    assert (tmp_path / "copy" / "experiment.toml").is_file()
