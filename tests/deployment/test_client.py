"""The client's side: training as in the simulator, attacks of tests, privacy, keys."""

import socket
import stat
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest
from deployment.grids import as_server
from flwr.app import ConfigRecord, Context, Message, RecordDict
from reference.tiny_task import TinyTask
from simulation.small import tiny

from secureafl.core.errors import ConfigError
from secureafl.deployment import client_app
from secureafl.deployment.client_app import named_arrays
from secureafl.deployment.join import ClientService
from secureafl.deployment.keys import make_certificates, make_key, register, revoke
from secureafl.deployment.messages import OTHER_VERSION, PROTOCOL, UploadSchema
from secureafl.deployment.own_task import task_checksum
from secureafl.deployment.processes import split_address
from secureafl.deployment.samples import InputFacts
from secureafl.deployment.serve import make_address
from secureafl.deployment.trainer import ClientOptions, Trainer
from secureafl.deployment.worker import Job, TrainerCache, options_from, request_update
from secureafl.experiment import write_experiment

TINY = "reference.tiny_task:TinyTask"
WEIGHTS = np.linspace(-0.1, 0.1, 111).astype(np.float32)


FACTS = InputFacts.of(TinyTask().load())
CHECKSUM = task_checksum(TinyTask())


def job(experiment, checksum=CHECKSUM):
    return Job(experiment, 0, 0, PROTOCOL, FACTS.to_json(), checksum)


def trained(client_options=None, client=0, version=0, **changes):
    made = Trainer(tiny(**changes), client_options or ClientOptions(), FACTS)
    return made.train(WEIGHTS, client, version)


def test_same_request_is_answered_alike_and_others_differently():
    one = trained().update
    np.testing.assert_array_equal(one, trained().update)
    assert not np.array_equal(one, trained(version=1).update)
    assert not np.array_equal(one, trained(client=1).update)


def test_attacker_of_a_test_plays_and_says_so():
    client_options = options_from({"attack": {"kind": "sign_flip", "factor": 3.0}})
    bad, good = trained(client_options, malicious=0), trained(malicious=0)
    np.testing.assert_allclose(bad.update, -3 * good.update, rtol=1e-6)
    assert (bad.attack, good.attack) == ("sign_flip", "")


def test_in_the_simulation_engine_the_experiments_own_attackers_play():
    played = [trained(client=c, attack="sign_flip", malicious=2).attack for c in range(6)]
    assert sorted(played) == ["", "", "", "", "sign_flip", "sign_flip"]


def test_attack_that_must_see_others_is_refused():
    with pytest.raises(ConfigError, match="more than its own data"):
        trained(options_from({"attack": "min_max"}))


def test_update_is_cut_before_it_leaves_if_the_client_insists():
    length = np.linalg.norm(trained().update)
    client_options = options_from({"privacy": {"clip": float(length / 2), "unit": "upload"}})
    np.testing.assert_allclose(trained(client_options).update, trained().update / 2, rtol=1e-5)


def test_experiment_may_ask_for_privacy_and_its_noise_is_never_the_same():
    training = {"batch_size": 4, "privacy": {"clip": 1.0, "noise": 0.5, "unit": "upload"}}
    one, other = (trained(training=training).update for _ in range(2))
    assert not np.array_equal(one, other)
    assert 0.3 < (one - other).std() / 2**0.5 < 0.7


def test_attackers_are_not_private():
    privacy = {"clip": 1.0, "noise": 0.5, "unit": "upload"}
    client_options = options_from({"attack": "sign_flip", "privacy": privacy})
    np.testing.assert_array_equal(trained(client_options).update, trained(client_options).update)


def test_worker_answers_over_its_socket_and_survives_nonsense(tmp_path):
    place = tmp_path / "w.sock"
    code = f"import sys; sys.path[:0] = {sys.path!r}; from pathlib import Path; " + (
        "from secureafl.deployment import worker; "
        f"worker.serve(Path({str(place)!r}), worker.options_from({{'task': {TINY!r}}}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        try:
            threading.Event().wait(0.1)
            while not place.exists():
                threading.Event().wait(0.1)
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(place))
                line.sendall(b"nonsense\n")
            made = job(write_experiment(tiny()))
            update, attack = request_update(str(place), made, WEIGHTS)
            np.testing.assert_array_equal(update, trained().update)
            assert attack == ""
            wrong = made.experiment.replace("rounds", "x", 1)
            with pytest.raises(RuntimeError, match="unknown setting"):
                request_update(str(place), made._replace(experiment=wrong), WEIGHTS)
        finally:
            process.terminate()


@pytest.mark.parametrize("text", ['task = "trap:Task"', '[task]\nkind = "trap:Task"'])
def test_client_imports_nothing_that_a_message_names(tmp_path, monkeypatch, text):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="started for"):
        TrainerCache(options_from({"task": TINY})).train(job(text), WEIGHTS)


@pytest.mark.parametrize(
    "own",
    [
        {"defense": "simulation.spies:Surroundings"},
        {"server_optimizer": "contract.test_optimizer_contract:Wrong"},
    ],
)
def test_defence_of_the_servers_own_is_no_matter_of_its_clients(own):
    text = write_experiment(tiny(**own))
    update, _ = TrainerCache(options_from({"task": TINY})).train(job(text), WEIGHTS)
    np.testing.assert_array_equal(update, trained().update)


@pytest.mark.parametrize("said", [{}, {"protocol": PROTOCOL + 1}])
def test_message_in_another_format_is_answered_with_ones_own(said):
    as_server()
    facts = {"experiment": "rounds = 1", "client": 0, "version": 0, **said}
    arrays = named_arrays(WEIGHTS, {"w": (111,)})
    content = RecordDict({"arrays": arrays, "request": ConfigRecord(facts)})
    message = Message(content, dst_node_id=1, message_type="train")
    answer = client_app.train(message, Context(1, 1, {}, RecordDict(), {}))
    assert dict(answer.content["secureafl"]) == {"protocol": PROTOCOL}
    assert UploadSchema({"w": (111,)}).read(answer.content) == OTHER_VERSION
    with pytest.raises(ConfigError, match="install the same version on both sides"):
        client_app._own_trainers().train(Job("rounds = 1", 0, 0), WEIGHTS)


def test_what_the_worker_cannot_do_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    service = ClientService("127.0.0.1:1", {}, None, None, False)
    assert service.complaints() == []
    (service._home / "worker.log").write_text("warming up\ncannot train: no data\n" * 2)
    assert service.complaints() == ["cannot train: no data"]
    assert service.complaints() == []
    service.stop()


def test_client_app_needs_no_torch():
    code = "import secureafl.deployment.client_app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_data_set_at_a_time_is_kept():
    trainers = TrainerCache(options_from({"task": TINY}))
    for seed in range(3):
        trainers.train(job(write_experiment(tiny(seed=seed))), WEIGHTS)
    assert len(trainers._trainers) == 1


def test_private_keys_are_private_and_nothing_is_overwritten(tmp_path):
    public = make_key(tmp_path / "alice")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert stat.S_IMODE((tmp_path / "alice").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="already there"):
        make_key(tmp_path / "alice")
    make_certificates(tmp_path / "certs", ["learn.example.org", "10.1.2.3"])
    assert stat.S_IMODE((tmp_path / "certs" / "server.key").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="not empty"):
        make_certificates(tmp_path / "certs", [])


def test_keys_are_registered_and_revoked_by_name(tmp_path):
    run = tmp_path / "run"
    (run / "server").mkdir(parents=True)
    place = register(make_key(tmp_path / "alice"), run)
    assert place == run / "server" / "keys" / "alice.pub"
    with pytest.raises(ConfigError, match="registered: alice"):
        revoke("bob", run)
    revoke("alice", run)
    assert not place.exists()


def test_private_key_is_not_registered(tmp_path):
    (tmp_path / "run" / "server").mkdir(parents=True)
    make_key(tmp_path / "alice")
    with pytest.raises(ConfigError, match="not a public key"):
        register(tmp_path / "alice", tmp_path / "run")


@pytest.mark.parametrize("address", ["0.0.0.0:8000", "10.0.0.1:8000", "learn.example.org:8000"])
def test_off_loopback_neither_side_starts_unprotected(address, tmp_path):
    with pytest.raises(ConfigError, match="--insecure"):
        make_address(address, None, False)
    with pytest.raises(ConfigError, match="--insecure"):
        ClientService(address, {}, None, None, False)


def test_key_without_tls_is_refused(tmp_path):
    make_key(tmp_path / "alice")
    with pytest.raises(ConfigError, match="--ca"):
        ClientService("127.0.0.1:8000", {}, None, tmp_path / "alice", False)


@pytest.mark.parametrize("address", ["", "8000", "host:", "host:0", "host:99999", "host:x"])
def test_wrong_address_is_named(address):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(address)


def test_folder_without_certificates_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no ca\.crt"):
        make_address("127.0.0.1:8000", tmp_path, False)
