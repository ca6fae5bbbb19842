"""Clients that come and go, in a run."""

import json

import numpy as np
import pytest
import torch
from simulation.small import run, tiny

from secureafl.core.errors import ConfigError
from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.core.trees import clone, name_tensors
from secureafl.defenses import DEFENSES
from secureafl.runs.events import read_events
from secureafl.simulation.engine import Eager
from secureafl.simulation.replayed import Replayed
from secureafl.simulation.run import start_run
from secureafl.simulation.simulator import Simulation

CHURN = {"late": 0.3, "stay": 12, "away": 12}
ROUNDS = 50


def coming_and_going(**changes):
    arrivals = {"kind": "uniform", "churn": CHURN}
    return tiny(**{"rounds": ROUNDS, "arrivals": arrivals, "forget_after": 8} | changes)


def forgotten(events):
    return [(e.round, e.client) for e in events if isinstance(e, ForgottenEvent)]


@pytest.mark.parametrize("kind", ["uniform", "event_driven"])
def test_client_is_forgotten_when_it_was_silent_for_long_and_named(kind):
    churn = CHURN if kind == "uniform" else {**CHURN, "stay": 2, "away": 2}
    simulation = Simulation(coming_and_going(arrivals={"kind": kind, "churn": churn}))
    events, clients = run(simulation, ROUNDS), simulation.trace.client.tolist()
    expected = [
        (now, clients[now - 9])
        for now in range(9, ROUNDS + 1)
        if clients[now - 9] not in clients[now - 8 : now]
    ]
    assert forgotten(events) == expected
    assert len(expected) >= 2


def test_forgotten_client_has_no_lipschitz_factor_when_it_returns():
    simulation = Simulation(coming_and_going(defense="secure_afl"))
    new, returns = set(range(6)), 0
    for event in run(simulation, ROUNDS):
        if isinstance(event, ForgottenEvent):
            new.add(event.client)
        elif isinstance(event, ArrivalEvent):
            if event.client in new:
                assert event.scores["lipschitz"] is None
                returns += 1
            new.discard(event.client)
    assert returns > 6


@pytest.mark.parametrize("defense", DEFENSES)
def test_run_with_churn_restored_at_any_round_equals_the_uninterrupted_one(defense):
    made = coming_and_going(defense=defense, attack="sign_flip", rounds=30)
    whole, events, left, snapshots = Simulation(made), [], [], []
    for _ in range(30):
        snapshots.append(whole.snapshot())
        left.append(len(events))
        events += whole.advance()
    assert forgotten(events)
    for now in range(3, 30, 4):
        other = Simulation(made)
        other.restore(snapshots[now])
        assert run(other, 30) == events[left[now] :]
        assert torch.equal(other.weights, whole.weights)


@pytest.mark.parametrize("forget_after", [1, 8, 30])
def test_memory_holds_exactly_the_clients_heard_of_lately(forget_after):
    simulation = Simulation(coming_and_going(forget_after=forget_after))
    while not simulation.finished:
        simulation.advance()
        now = simulation.round
        lately = set(simulation.trace.client[max(0, now - forget_after) : now].tolist())
        known = simulation.defense_state.records.known
        assert set(torch.nonzero(known).flatten().tolist()) == lately


def test_nobody_is_forgotten_unless_asked():
    simulation = Simulation(coming_and_going(forget_after=0))
    assert not forgotten(run(simulation, ROUNDS))


def test_run_folder_names_who_was_forgotten(tmp_path):
    recording = start_run(coming_and_going(), tmp_path / "run", 1e9)
    seen = forgotten(recording)
    assert seen == forgotten(read_events(tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["forgotten"] == len(seen) > 0


def test_negative_age_is_refused():
    with pytest.raises(ConfigError, match="forget_after = -1: give 0"):
        tiny(forget_after=-1)


@pytest.mark.parametrize("defense", DEFENSES)
def test_forgetting_writes_where_a_recorded_step_looks(defense):
    simulation = Simulation(coming_and_going(defense=defense))
    run(simulation, 20)
    engine = object.__new__(Replayed)  # recording itself needs a GPU
    engine._server = simulation._server
    before = simulation._state
    places = [t.data_ptr() for t in name_tensors(before.defense, "").values()]
    expected = simulation._server.forget(before._replace(defense=clone(before.defense)), 1)
    after = engine.forget(before, 1)
    assert after is before
    found = name_tensors(after.defense, "")
    assert [t.data_ptr() for t in found.values()] == places
    for name, tensor in name_tensors(expected.defense, "").items():
        assert torch.equal(tensor, found[name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("unit", ["example", "upload"])
@pytest.mark.parametrize(("defense", "weighting"), [("secure_afl", "samples"), ("kardam", "equal")])
def test_recorded_run_with_everything_on_is_the_one_computed_at_once(unit, defense, weighting):
    privacy = {"clip": 0.5, "noise": 0.3, "unit": unit}
    training = {"batch_size": 4, "learning_rate": 0.1, "privacy": privacy}
    options = {"defense": defense, "client_weighting": weighting, "training": training}
    made = coming_and_going(attack="sign_flip", device="cuda", **options)
    recorded, at_once = Simulation(made), Simulation(made)
    parts = at_once._clients, at_once._attackers, at_once._server, at_once._jobs
    at_once._engine = Eager(*parts, made.seed)
    events = run(recorded, ROUNDS)
    assert forgotten(events)
    assert events == run(at_once, ROUNDS)
    assert torch.equal(recorded.weights, at_once.weights)


def test_samples_weigh_in_a_run_as_they_are_held():
    skewed = {"kind": "dirichlet", "concentration": 0.3}
    made = tiny(client_weighting="samples", partition=skewed, defense="async_sgd", rounds=1)
    simulation = Simulation(made)
    held = [len(rows) for rows in simulation.shards.rows]
    assert simulation._server.samples.tolist() == held
    assert len(set(held)) > 1
    plain = Simulation(tiny(partition=skewed, defense="async_sgd", rounds=1))
    start = plain.weights.clone()
    run(simulation, 1), run(plain, 1)
    factor = held[int(plain.trace.client[0])] / np.mean(held)
    torch.testing.assert_close(simulation.weights - start, factor * (plain.weights - start))


def test_defence_that_cannot_weigh_is_refused_before_training():
    with pytest.raises(ConfigError, match="client_weighting = 'samples': Kardam cannot weigh"):
        Simulation(tiny(client_weighting="samples", defense="kardam"))
