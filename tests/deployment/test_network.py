"""Real processes: SuperLink, SuperExec, ServerApp, SuperNodes, workers; TLS and keys."""

import os
import random
import signal
import time

import numpy as np
import pytest
import safetensors.numpy
from deployment.network import Network

from secureafl.attacks import SignFlip
from secureafl.core.events import ArrivalEvent
from secureafl.deployment.keys import make_key
from secureafl.deployment.replay import Replay
from secureafl.results import read_events


def final_weights(run):
    return safetensors.numpy.load_file(run / "model.safetensors")["weights"]


def replayed(run):
    simulation = Replay(run, SignFlip(factor=10.0))
    while not simulation.finished:
        simulation.advance()
    return simulation.weights.numpy()


def arrivals(run):
    return [event for event in read_events(run) if isinstance(event, ArrivalEvent)]


@pytest.mark.timeout(180)
def test_a_real_run_and_its_replay_in_the_simulator_give_the_same_bits(tmp_path):
    with Network(tmp_path, rounds=4) as net:
        make_key(tmp_path / "stranger")
        net.serve()
        net.make_keys("one", "two")
        net.join("one")
        net.join("two", "--attack", "sign_flip", "--set", "attack.factor=10")
        net.join("stranger")
        net.wait_finished(150)
        assert "not let in" in net.log("stranger").read_text()
    found = arrivals(net.run)
    assert [event.round for event in found] == list(range(4))
    assert {event.malicious for event in found} == {False, True}
    assert {line["node"] for line in net.told("here")} == {
        line["node"] for line in net.told("arrival")
    }
    np.testing.assert_array_equal(replayed(net.run), final_weights(net.run))


KILLS = 50


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_run_survives_kills_of_everything_at_random_moments(tmp_path):
    rng, names = random.Random(1), ["one", "two", "three", "four"]
    with Network(tmp_path, rounds=KILLS + 20, deadline=60.0) as net:
        net.serve()
        net.make_keys(*names)
        for name in names:
            more = ["--attack", "sign_flip", "--set", "attack.factor=10"] if name == "four" else []
            net.join(name, *more)
        kills, seen = {"app": 0, "link": 0, "node": 0}, {}
        began = time.monotonic()
        while sum(kills.values()) < KILLS:
            due = sum(kills.values())
            net.wait(lambda due=due: note(net, seen) > due, 600, f"round {due}")
            time.sleep(rng.uniform(0, 4))
            what = rng.choice(["app", "link", "node"])
            kills[what] += kill(net, what, rng.choice(names))
        net.wait_finished(1200)
        print(kills, f"{time.monotonic() - began:.0f} s", f"{len(net.told('serving'))} server apps")
    found = arrivals(net.run)
    assert [event.round for event in found] == list(range(KILLS + 20))
    assert all(found[number] == event for number, event in seen.items()), "a round was lost"
    rounds = [line["round"] for line in net.told("arrival")]
    assert len(set(rounds)) == len(rounds), "a round was applied twice"
    np.testing.assert_array_equal(replayed(net.run), final_weights(net.run))


def note(net, seen):
    """Remember every round that was ever on disk; how many there are now."""
    now = arrivals(net.run)
    for event in now:
        assert seen.setdefault(event.round, event) == event
    return len(now)


def kill(net, what, name):
    """Kill a process for good; whether there was one."""
    number = {
        "app": net.server_app,
        "link": lambda: net.child("serve", "secureafl.deployment.guard"),
        "node": lambda: net.child(name, "flower-supernode"),
    }[what]()
    try:
        if number:
            os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return bool(number)
