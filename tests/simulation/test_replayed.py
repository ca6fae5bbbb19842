"""What recorded work takes from tables: every arrival's model is in its place when it is needed."""

import numpy as np
import pytest
import torch
from simulation.on_cpu import recorded_engine
from simulation.small import run, tiny
from simulation.spies import SPIES

from secureafl.core.errors import ConfigError
from secureafl.core.traits import has_trait
from secureafl.simulation.replayed import Replayed, place_models
from secureafl.simulation.simulator import Simulation

ROUNDS, KEPT = 24, 11
# These have no other kernels than those of rows.
DEFENSES = "async_sgd norm_clipping async_defender async_filter catalyst kardam weighted_ctma"


def versions(seed, rounds, staleness):
    rng = np.random.default_rng(seed)
    now = np.arange(rounds)
    return now - np.minimum(now, rng.integers(0, staleness + 1, rounds))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("staleness", [0, 1, 4, 100])
def test_every_upload_finds_the_model_it_answers_to(seed, staleness):
    version = versions(seed, 60, staleness)
    places = place_models(version)
    held = {}
    for now in range(len(version) + 1):
        held[places[now]] = now  # written after the round before
        if now < len(version):
            assert held[places[version[now]]] == version[now]


@pytest.mark.parametrize("staleness", [0, 3, 100])
def test_no_more_places_than_models_that_are_needed_at_a_time(staleness):
    version = versions(1, 200, staleness)
    needed = [set(version[now:]) & set(range(now + 1)) for now in range(len(version))]
    assert place_models(version).max() + 1 == max(map(len, needed)) + 1  # and one for the rest


def test_run_of_one_round_has_places():
    assert place_models(np.array([0])).tolist() == [0, 1]


TRAINED = ["pgd", "composed_backdoor", {"kind": "composed", "aim": "one_class", "cover": "own"}]


@pytest.mark.parametrize("attack", ["min_max", "gaussian", "composed@camouflage", *TRAINED])
@pytest.mark.parametrize("kept", ["recorded", "eager"])
def test_recorded_run_goes_on_from_any_checkpoint_with_the_same_bits(attack, kept):
    made = tiny(defense="secure_afl", attack=attack, rounds=ROUNDS)
    with recorded_engine():
        whole, first, second = (Simulation(made) for _ in range(3))
        expected = run(whole, ROUNDS)
        run(first, KEPT)
    if kept == "eager":
        first = Simulation(made)
        run(first, KEPT)
    with recorded_engine():
        second.restore(first.snapshot())
        found = run(second, ROUNDS)
    assert found == expected[-len(found) :]
    assert len(found) == ROUNDS - KEPT + 1  # the last evaluation
    assert (second.weights == whole.weights).all()


@pytest.mark.parametrize(
    "attack", [*TRAINED, {"kind": "pgd", "steps": 1}, "simulation.spies:Trainer"]
)
@pytest.mark.parametrize("window", [(0, 0), (5, 15)])
def test_recorded_attack_trains_on_the_batches_of_the_one_computed_at_once(attack, window):
    first, end = window
    made = tiny(attack=attack, rounds=ROUNDS, attack_from=first, attack_until=end)
    at_once = Simulation(made)
    expected = run(at_once, ROUNDS)
    with recorded_engine():
        recorded = Simulation(made)
        assert recorded._attackers.recordable
        found = run(recorded, ROUNDS)
    assert found == expected
    assert (recorded.weights == at_once.weights).all()


ROOT_DATA = [
    *("aflguard", "zeno_pp", "sageflow", {"kind": "zeno_pp", "form": "score"}),
    *({"kind": "aflguard", **one} for one in ({"batch_size": 3}, {"form": "alignment"})),
]


@pytest.mark.parametrize("defense", [*DEFENSES.split(), "fed_buff", *ROOT_DATA])
def test_recorded_run_asks_the_defence_as_one_computed_at_once_does(defense, monkeypatch):
    made = tiny(attack="adaptive", defense=defense, rounds=2 * ROUNDS)
    at_once = Simulation(made)
    expected = run(at_once, 2 * ROUNDS)
    asked = []
    ask = Replayed._ask
    monkeypatch.setattr(Replayed, "_ask", lambda *given: asked.append(given) or ask(*given))
    with recorded_engine():
        recorded = Simulation(made)
        assert run(recorded, 2 * ROUNDS) == expected
    assert (recorded.weights == at_once.weights).all()
    uploads = sum(getattr(event, "malicious", False) for event in expected)
    if has_trait(made.defense, "buffering"):
        assert uploads < len(asked) < 10 * uploads, "answer by answer, until one ends it"
    else:
        assert len(asked) == uploads, "about all in one piece"


@pytest.mark.parametrize("defense", ["zeno_pp", "fed_buff", "simulation.spies:Tiring"])
def test_recorded_run_answers_an_attack_that_trains_too(defense):
    made = tiny(attack="simulation.spies:Inquirer", defense=defense, rounds=2 * ROUNDS)
    at_once = Simulation(made)
    expected = run(at_once, 2 * ROUNDS)
    with recorded_engine():
        recorded = Simulation(made)
        assert run(recorded, 2 * ROUNDS) == expected
    assert (recorded.weights == at_once.weights).all()


def test_recorded_attack_that_trains_on_more_batches_than_it_says_is_told():
    made = tiny(attack="contract.wrong_attacks:Training", rounds=ROUNDS)
    with recorded_engine(), pytest.raises(ConfigError, match=r"batches = 1: it trains on batch 1"):
        run(Simulation(made), ROUNDS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attack", ["none", "label_flip", *SPIES.values()])
@pytest.mark.parametrize("defense", DEFENSES.split())
def test_recorded_run_has_the_bits_of_plain_torch(attack, defense):
    given = {"attack": attack, "defense": defense, "rounds": 2 * ROUNDS, "device": "cuda"}
    kinds = "auto", "reference"
    fused, plain = (Simulation(tiny(kernels=kind, **given)) for kind in kinds)
    assert run(fused, 2 * ROUNDS) == run(plain, 2 * ROUNDS)
    assert torch.equal(fused.weights, plain.weights)
