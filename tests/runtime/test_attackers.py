"""What the simulator shows an attack, and when it lets it act."""

import itertools

import numpy as np
import pytest
import torch
from simulation.small import run, tiny
from simulation.spies import SPIES, Witness

from secureafl.attacks import ATTACKS
from secureafl.core.errors import ConfigError
from secureafl.core.events import ArrivalEvent
from secureafl.core.types import AttackerView
from secureafl.defenses import DEFENSES
from secureafl.simulation.engine import Eager
from secureafl.simulation.simulator import Simulation

ROUNDS = 40


@pytest.mark.parametrize("rounds", [25, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_meets_every_defence(attack, defense, rounds):
    simulation = Simulation(tiny(attack=attack, defense=defense, rounds=rounds))
    events = run(simulation, rounds)
    assert sum(isinstance(event, ArrivalEvent) for event in events) == rounds
    assert torch.isfinite(simulation.weights).all()


def witnessed(**changes):
    simulation = Simulation(tiny(attack="simulation.spies:Witness", rounds=ROUNDS, **changes))
    uploads = []
    update = simulation._update
    simulation._update = lambda *given: uploads.append(update(*given)) or uploads[-1]
    run(simulation, ROUNDS)
    return simulation, uploads, Witness.shown


def test_context_tells_the_models_layout_and_the_task():
    simulation, _, (context, *_) = witnessed()
    assert context.layout == {"1.weight": (3, 36), "1.bias": (3,)}
    assert context.num_parameters == simulation.weights.numel() == 111
    assert (context.num_clients, context.num_malicious, context.num_classes) == (6, 2, 3)
    assert context.input_shape == (1, 6, 6)


def test_table_holds_what_each_client_trained_last_the_present_upload_included():
    simulation, uploads, (_, *shown) = witnessed()
    trace, expected, known = simulation.trace, torch.zeros(6, 111), torch.zeros(6, dtype=bool)
    shown = iter(shown)
    for now, client in enumerate(trace.client):
        expected[client], known[client] = uploads[now], True  # nobody changes what it trained
        if simulation.malicious[client]:
            _, seen, _ = next(shown)
            assert seen.round == now
            assert torch.equal(seen.clients.gradients, expected)
            assert torch.equal(seen.clients.known, known)
            assert seen.clients.malicious.tolist() == simulation.malicious.tolist()


def test_attackers_are_numbered_and_their_further_batches_are_their_own_and_repeatable():
    simulation, _, (_, *shown) = witnessed()
    numbers = np.flatnonzero(simulation.malicious)
    for trained, seen, (first, second, again) in shown:
        assert numbers[seen.attacker_index] == int(trained.client)
        assert torch.equal(first, again)
        assert not torch.equal(first, second)
        assert not torch.equal(first, trained.gradient)
    assert {seen.attacker_index for _, seen, _ in shown} == {0, 1}


def test_further_batches_come_from_the_clients_own_shard():
    simulation, _, _ = witnessed(clients=6)
    asked = []
    attackers = simulation._attackers
    client = int(np.flatnonzero(simulation.malicious)[0])
    train = attackers._further_training(
        client, 7, lambda w, rows, attacker_index: asked.append(rows)
    )
    for number in range(20):
        train(simulation.weights, number)
    drawn = set(torch.cat(asked).tolist())
    assert drawn <= set(simulation.shards.rows[client].tolist())
    assert len(drawn) > 4


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rate_and_gradients_are_on_the_scale_of_uploads(reduction):
    training = {"batch_size": 4, "learning_rate": 0.1, "reduction": reduction}
    _, uploads, (_, *shown) = witnessed(training=training, defense="async_sgd")
    scale = 4 if reduction == "sum" else 1
    for trained, seen, further in shown:
        assert seen.learning_rate == pytest.approx(0.1 / scale)
        assert torch.equal(trained.gradient, uploads[seen.round])
        lengths = [float(g.norm()) for g in (trained.gradient, *further)]
        assert max(lengths) < 8 * min(lengths)


def test_snapshot_shows_the_whole_server():
    simulation, _, (_, *shown) = witnessed(defense="zeno_pp")
    for _, seen, _ in shown:
        assert isinstance(seen, AttackerView)
        assert seen.snapshot.defense == simulation.experiment.defense
        assert int(seen.snapshot.server.round) == seen.round
        assert seen.snapshot.server.root_data is not None


@pytest.mark.parametrize("knows", SPIES)
def test_attack_is_shown_no_more_than_it_knows(knows):
    simulation = Simulation(tiny(attack=SPIES[knows], rounds=ROUNDS))  # the spies look
    run(simulation, ROUNDS)
    assert any(name.startswith("trained.") for name in simulation.snapshot()) == (knows != "own")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("attack", "defense"),
    [
        *itertools.product([*SPIES.values(), *ATTACKS], ["async_sgd", "secure_afl"]),
        *(("adaptive", d) for d in DEFENSES if d not in ("async_sgd", "secure_afl")),
    ],
)
def test_recorded_run_is_the_one_computed_at_once(attack, defense):
    made = tiny(attack=attack, rounds=ROUNDS, device="cuda", defense=defense)
    recorded, at_once = Simulation(made), Simulation(made)
    parts = at_once._clients, at_once._attackers, at_once._server, at_once._jobs
    at_once._engine = Eager(*parts, made.seed)
    assert run(recorded, ROUNDS) == run(at_once, ROUNDS)
    assert torch.equal(recorded.weights, at_once.weights)


def test_gradient_that_is_not_finite_is_not_noted():
    simulation = Simulation(tiny(attack=SPIES["everybody"]))
    attackers, good = simulation._attackers, torch.ones(111)
    attackers.note(torch.tensor(2), good)
    for client in (2, 3):
        attackers.note(torch.tensor(client), torch.full((111,), torch.nan))
    table = attackers._client_gradients
    assert torch.equal(table.gradients[2], good)
    assert table.known.tolist() == [False, False, True, False, False, False]
    assert torch.isfinite(table.gradients).all()


def test_knowledge_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"attack\.knows = 'everything': choose one of own"):
        Simulation(tiny(attack="simulation.spies:Nosy"))


@pytest.mark.parametrize(
    ("first", "end", "attacked"),
    [
        (0, 0, range(40)),
        (10, 0, range(10, 40)),
        (0, 7, range(7)),
        (5, 30, range(5, 30)),
        (3, 99, range(3, 40)),
    ],
)
@pytest.mark.parametrize("attack", ["gaussian", SPIES["everybody"]])
def test_attack_starts_and_stops_when_told(first, end, attacked, attack):
    made = tiny(attack=attack, rounds=40, attack_from=first, attack_until=end, defense="async_sgd")
    simulation, honest = Simulation(made), Simulation(tiny(rounds=40, defense="async_sgd"))
    for now in range(40):
        event = next(e for e in simulation.advance() if isinstance(e, ArrivalEvent))
        honest.advance()
        client = simulation.trace.client[now]
        assert event.malicious == (bool(simulation.malicious[client]) and now in attacked)
        if now < first:
            assert torch.equal(simulation.weights, honest.weights)
    assert not torch.equal(simulation.weights, honest.weights)


def test_run_restored_outside_the_attack_goes_on_into_it():
    made = tiny(attack=SPIES["everybody"], rounds=ROUNDS, attack_from=20, attack_until=30)
    whole, other = Simulation(made), Simulation(made)
    run(whole, 12)
    other.restore(whole.snapshot())
    assert run(other, ROUNDS) == run(whole, ROUNDS)
    assert torch.equal(other.weights, whole.weights)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attack_from": -1}, "attack_from = -1: give a round from 0 to 11"),
        ({"attack_from": 12}, "attack_from = 12: give a round from 0 to 11"),
        ({"attack_until": -1}, "attack_until = -1: give a round after attack_from, 0"),
        (
            {"attack_from": 5, "attack_until": 5},
            "attack_until = 5: give",
        ),
    ],
)
def test_times_without_a_meaning_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        tiny(**changes)


@pytest.mark.parametrize("attack", ATTACKS)
def test_regression_is_attacked_or_refused_in_one_line(attack):
    task, partition = "reference.tiny_task:TinyRegression", "simulation.spies:Shuffled"
    made = tiny(attack=attack, task=task, partition=partition, rounds=ROUNDS)
    refused = ""
    try:
        simulation = Simulation(made)
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert "\n" not in refused
        return
    run(simulation, ROUNDS)
    assert torch.isfinite(simulation.weights).all()
