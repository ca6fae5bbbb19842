"""Uploads that must not reach any arithmetic are refused in a run, by either engine."""

import contextlib

import pytest
import torch
from simulation.on_cpu import recorded_engine
from simulation.small import tiny
from simulation.spies import SPIES

from secureafl.attacks import ATTACKS
from secureafl.core.events import ArrivalEvent
from secureafl.core.traits import has_trait
from secureafl.defenses import DEFENSES
from secureafl.simulation.engine import Eager
from secureafl.simulation.replayed import Replayed
from secureafl.simulation.simulator import Simulation

ROUNDS = 24
ENGINES = {"eager": contextlib.nullcontext, "recorded": recorded_engine}
BAD = {
    "nan": "not_finite",
    "one_nan": "not_finite",
    "infinite": "not_finite",
    "long": "too_large",
    "shorter": "wrong_shape",
    "matrix": "wrong_shape",
    "double": "wrong_type",
    "list": "wrong_type",
}
for_each_engine = pytest.mark.parametrize("engine", ENGINES)


def played(made):
    """A simulation with its events, and the weights before each arrival."""
    simulation, weights, events = Simulation(made), [], []
    while not simulation.finished:
        weights.append(simulation.weights.clone())
        events += simulation.advance()
    arrivals = [event for event in events if isinstance(event, ArrivalEvent)]
    return simulation, arrivals, [*weights, simulation.weights.clone()]


@for_each_engine
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("defense", ["async_sgd", "secure_afl", "fed_buff"])
def test_bad_upload_is_refused_with_its_reason_and_moves_nothing(engine, kind, defense):
    attack = {"kind": "simulation.spies:Spoiler", "what": kind}
    with ENGINES[engine]():
        simulation, arrivals, weights = played(tiny(attack=attack, defense=defense, rounds=ROUNDS))
    assert isinstance(simulation._engine, Replayed if engine == "recorded" else Eager)
    refused = [event for event in arrivals if event.malicious]
    assert len(refused) >= 4
    for event in refused:
        assert (event.accepted, event.stepped, event.reason) == (False, False, BAD[kind])
        assert event.scores == {}
        assert torch.equal(weights[event.round], weights[event.round + 1])
    assert any(event.accepted for event in arrivals)
    assert all("norm" in event.scores for event in arrivals if not event.malicious)
    assert all(torch.isfinite(model).all() for model in weights)


@for_each_engine
def test_refused_upload_uses_up_its_answer_and_no_other(engine):
    attack = {"kind": "simulation.spies:Spoiler", "what": "nan"}
    with ENGINES[engine]():
        simulation, *_ = played(tiny(attack=attack, rounds=ROUNDS))
    assert simulation._state.ledger.models() == {}


@pytest.mark.parametrize(
    ("defense", "attack"),
    [
        *((d, "sign_flip") for d in DEFENSES),
        *(("secure_afl", a) for a in [*ATTACKS, *SPIES.values()]),
    ],
)
def test_recorded_engine_gives_the_bits_of_the_eager_one(defense, attack):
    made = tiny(defense=defense, attack=attack, rounds=ROUNDS, forget_after=8)
    if has_trait(made.defense, "on_host"):
        pytest.skip("such a defence is never recorded")
    eager, expected, _ = played(made)
    with recorded_engine():
        recorded, found, _ = played(made)
    assert found == expected
    assert torch.equal(recorded.weights, eager.weights)


def test_run_waits_in_turns_while_the_engine_is_busy():
    with recorded_engine():
        turns = list(Simulation(tiny(rounds=ROUNDS)).turns())
    empty = [turn for turn in turns if not turn]
    assert len(empty) == 4 * ROUNDS  # twice for the norm, twice for the decision
    assert len(turns) == 5 * ROUNDS
