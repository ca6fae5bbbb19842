"""Real processes: SuperLink, SuperExec, ServerApp, SuperNodes, workers; TLS and keys."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter

import numpy as np
import pytest
from deployment.network import Network
from deployment.replay import replayed_weights

from secureafl.attacks import SignFlip
from secureafl.core.events import ArrivalEvent
from secureafl.core.flat_model import flatten
from secureafl.deployment.keys import make_certificates, make_key, register, revoke
from secureafl.deployment.processes import free_port, is_alive
from secureafl.runs.events import read_events
from secureafl.runtime.trained_model import load_model


def final_weights(run):
    return flatten(load_model(run).module).detach().numpy()


def replayed(run):
    return replayed_weights(run, SignFlip(factor=10.0)).numpy()


def arrivals(run):
    return [event for event in read_events(run) if isinstance(event, ArrivalEvent)]


@pytest.mark.timeout(300)
def test_a_real_run_and_its_replay_give_the_same_bits(tmp_path):
    with Network(tmp_path, rounds=4) as net:
        make_key(tmp_path / "stranger")
        net.serve()
        net.make_keys("one", "two")
        net.join("one")
        net.join("two", "--attack", "sign_flip", "--set", "attack.factor=10")
        stranger = net.join("stranger")
        unknown = "not let in: the server does not know this key"
        net.wait(lambda: unknown in net.log("stranger").read_text(), 150, "refusal")
        stranger.terminate()
        net.wait_finished(150)
    found = arrivals(net.run)
    assert [event.round for event in found] == list(range(4))
    assert {event.malicious for event in found} == {False, True}
    assert {line["node"] for line in net.told("here")} == {
        line["node"] for line in net.told("arrival")
    }
    np.testing.assert_array_equal(replayed(net.run), final_weights(net.run))


KILLS = int(os.environ.get("SECUREAFL_KILLS", "50"))
SEED = int(os.environ.get("SECUREAFL_SEED", "1"))  # of what is killed when
MEMBERS = {"one": [], "two": [], "three": ["--attack", "sign_flip", "--set", "attack.factor=10"]}
SERVERS = {  # words of the command lines of all that `serve` runs, and of itself
    "serve": "secureafl serve",
    "superlink": "secureafl.deployment.guard",
    "superexec": "flower-superexec",
    "flwr run": "flwr run",
    "server app": "flwr-serverapp",
}
CLIENTS = {  # and of `join`
    "join": "secureafl join",
    "supernode": "flower-supernode",
    "node's superexec": "flower-superexec",
    "client app": "flwr-clientapp",
    "worker": "secureafl.deployment.worker",
}


@pytest.mark.slow
@pytest.mark.timeout(900 + 10 * KILLS)
def test_run_survives_kills_of_everything_at_random_moments(tmp_path):
    """Kills come in bursts, so most hit processes that are being started again after others."""
    rng, kills, seen, rounds = random.Random(SEED), Counter(), {}, KILLS // 5 + 20
    with Network(tmp_path, rounds=rounds, clients=len(MEMBERS), deadline=30.0) as net:
        net.serve()
        net.make_keys(*MEMBERS)
        for name, words in MEMBERS.items():
            net.join(name, *words)
        net.wait(lambda: note(net, seen) > 0, 200, "first round")
        began = time.monotonic()
        while kills.total() < KILLS:
            for _ in range(rng.randint(1, min(40, KILLS - kills.total()))):
                time.sleep(rng.uniform(0, 0.8))
                kills[kill(net, rng)] += 1
            before = note(net, seen)
            assert before < rounds, "finished before all kills were done"
            net.wait(lambda before=before: note(net, seen) > before, 600, f"round {before}")
            spent = time.monotonic() - began
            print(f"{kills.total()} kills, {spent:.0f} s, round {len(seen)}", flush=True)
        net.wait_finished(1200)
        print(dict(kills), f"{len(net.told('serving'))} server apps")
    found = arrivals(net.run)
    assert [event.round for event in found] == list(range(rounds))
    assert all(found[number] == event for number, event in seen.items()), "a round was lost"
    told = [line["round"] for line in net.told("arrival")]
    assert len(set(told)) == len(told), "a round was applied twice"
    np.testing.assert_array_equal(replayed(net.run), final_weights(net.run))


def note(net, seen):
    """Remember every round that was ever on disk; how many there are now."""
    now = arrivals(net.run)
    for event in now:
        assert seen.setdefault(event.round, event) == event
    return len(now)


def kill(net, rng):
    """Kill a process of a kind that there is; returns the kind.

    `serve` and `join` are started again as a service manager would; nothing else is done by hand.
    """
    for name, process in net.processes.items():
        assert process.poll() is None, f"{name} ended by itself\n{net.words()}"
    while True:
        what, name = rng.choice([*SERVERS, *CLIENTS]), rng.choice(list(MEMBERS))
        name = "serve" if what in SERVERS else name
        numbers = net.find(name, {**SERVERS, **CLIENTS}[what])
        with contextlib.suppress(IndexError, ProcessLookupError):  # there is none (any more)
            os.kill(rng.choice(numbers), signal.SIGKILL)
            break
    if what in ("serve", "join"):
        net.processes[name].wait()
        net.serve() if what == "serve" else net.join(name, *MEMBERS[name])
    return what


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_strangers_are_refused_and_the_server_stops_and_goes_on(tmp_path):
    port = free_port()
    with Network(tmp_path, rounds=1000, more=f"metrics_port = {port}") as net:
        net.serve_members("one", "two")
        net.wait(lambda: len(net.told("arrival")) >= 3, 200, "arrivals")
        assert len(net.told("here")) == 2
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        assert "secureafl_clients 2.0" in page
        assert "secureafl_updates_accepted_total" in page
        assert "secureafl_server_app_up 1.0" in page
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as health:
            assert json.load(health)["problems"] == []

        # Plain text to a server that speaks TLS: no answer, and the node is not let in.
        with socket.create_connection(("127.0.0.1", net.port), timeout=10) as line:
            line.sendall(b"POST /v1/fleet/register-node HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP" not in line.recv(100)
        net.start("plain", "join", "--server", f"127.0.0.1:{net.port}", "--insecure")
        # TLS, but without a key, and with another authority's word for the server.
        net.start("keyless", "join", "--server", f"127.0.0.1:{net.port}", "--ca", "certs/ca.crt")
        make_certificates(tmp_path / "other", [])
        make_key(tmp_path / "misled")
        words = ["--server", f"127.0.0.1:{net.port}", "--ca", "other/ca.crt", "--key", "misled"]
        net.start("misled", "join", *words)

        # A key that is taken away.
        revoke("two", net.run)
        net.wait(lambda: net.told("gone"), 120, "node that went")
        net.wait(lambda: net.told("slot_free"), 20, "free slot")
        assert net.told("slot_free")[0]["node"] == net.told("gone")[0]["node"]
        net.wait(lambda: "this key was revoked" in net.log("two").read_text(), 120, "refusal")
        time.sleep(20)
        assert len(net.told("here")) == 2
        gone = net.told("gone")[0]["node"]
        later = [line["node"] for line in net.told("arrival")][-2:]
        assert gone not in later

        # Asked to stop, it finishes the step in hand and can be gone on with.
        serve = net.processes["serve"]
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(90) == 130
        rounds = len(arrivals(net.run))
        assert (net.run / "checkpoint.safetensors").is_file()
        net.serve()
        net.wait(lambda: len(arrivals(net.run)) > rounds, 200, "further round")
        assert net.told("serving")[-1]["round"] == rounds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_serve_is_gone_on_with_and_a_replaced_key_counts_at_once(tmp_path):
    with Network(tmp_path, rounds=1000) as net:
        _, two = net.serve_members("one", "two")
        net.wait(lambda: len({line["node"] for line in net.told("arrival")}) == 2, 200, "arrivals")
        before, old_app = note(net, {}), net.server_app()
        net.processes["serve"].kill()
        net.processes["serve"].wait()
        net.serve()
        net.wait(lambda: note(net, {}) > before, 200, "further round")
        assert net.server_app() != old_app
        assert not is_alive(old_app)

        # The same name with another key: the old key is out, the new one is in.
        (tmp_path / "new").mkdir()
        register(make_key(tmp_path / "new" / "two"), net.run)
        net.wait(lambda: "not let in" in net.log("two").read_text(), 120, "refusal")
        two.terminate()
        nodes = {line["node"] for line in net.told("arrival")}
        net.join("new/two")
        net.wait(lambda: {n["node"] for n in net.told("arrival")} - nodes, 200, "new node")
        said = [line["said"] for line in net.told("keys")]
        assert sum("key two: node" in line for line in said) == 1
        assert sum("key two: let in" in line for line in said) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_whose_superlink_is_frozen_ends_before_systemd_kills_it(tmp_path):
    with Network(tmp_path, rounds=1000) as net:
        net.serve_members("one", "two")
        net.wait(lambda: len(net.told("arrival")) >= 3, 200, "arrivals")
        serve, (link,) = net.processes["serve"], net.find("serve", SERVERS["superlink"])
        os.kill(link, signal.SIGSTOP)
        began = time.monotonic()
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(90) == 130
        print(f"ended after {time.monotonic() - began:.0f} s")
        assert not is_alive(link)
        assert not is_alive(net.server_app())
        rounds = len(net.told("arrival"))
        net.serve()
        net.wait(lambda: len(net.told("serving")) == 2, 200, "server that goes on")
        assert net.told("serving")[-1]["round"] == rounds


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 400 MB."""
    words = ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(tmp_path)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_full_disk_is_told_at_once_and_the_run_goes_on_by_itself(small_disk):
    port = free_port()
    with Network(small_disk, rounds=1000, more=f"metrics_port = {port}") as net:
        net.serve_members("one", "two")
        net.wait(lambda: len(net.told("arrival")) >= 3, 200, "arrivals")
        (small_disk / "large").write_bytes(bytes(200 * 2**20))
        began = time.monotonic()
        net.wait(lambda: "disk full" in net.log("serve").read_text(), 10, "word of the disk")
        print(f"told after {time.monotonic() - began:.1f} s")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
        net.wait(lambda: net.told("disk_full"), 10, "word of the server app")
        rounds = len(arrivals(net.run))
        time.sleep(5)
        assert len(arrivals(net.run)) == rounds
        (small_disk / "large").unlink()
        net.wait(lambda: len(arrivals(net.run)) > rounds, 60, "further round")
        assert "can be written again" in net.log("serve").read_text()
        assert len(net.told("serving")) == 1, "nothing had to be started again"
