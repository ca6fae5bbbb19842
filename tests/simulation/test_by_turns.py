"""Several runs at a time, by turns, as a table's cells share a GPU; each is as it is alone."""

import pytest
import torch
from simulation.small import tiny

from secureafl.attacks import ATTACKS
from secureafl.defenses import DEFENSES
from secureafl.simulation.simulator import Simulation

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
ROUNDS = 30


def whole(simulation):
    return [event for events in simulation.turns() for event in events]


def by_turns(simulations):
    """Events of each, a turn of every run after the other."""
    turns, events = [s.turns() for s in simulations], [[] for _ in simulations]
    active = list(range(len(turns)))
    while active:
        for number in list(active):
            try:
                events[number] += next(turns[number])
            except StopIteration:
                active.remove(number)
    return events


def scores(events):
    return [v for e in events for v in getattr(e, "scores", {}).values() if v is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("defense", "attack"),
    [*((d, "sign_flip") for d in DEFENSES), *(("secure_afl", a) for a in ATTACKS)],
)
def test_run_among_others_equals_the_run_alone(defense, attack, device):
    made = [
        tiny(defense=defense, attack=attack, seed=seed, device=device, rounds=ROUNDS)
        for seed in range(3)
    ]
    together = [Simulation(experiment) for experiment in made]
    events = by_turns(together)
    alone = Simulation(made[1])  # which has others before and after it
    assert events[1] == whole(alone)
    assert torch.equal(together[1].weights, alone.weights)


@needs_gpu
@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("attack", ["none", "label_flip"])
def test_recorded_round_is_the_one_on_a_cpu(defense, attack):
    """To float32 rounding, which a few rounds do not blow up."""
    runs = [
        Simulation(tiny(defense=defense, attack=attack, device=device, rounds=ROUNDS // 2))
        for device in ("cpu", "cuda")
    ]
    one, other = (whole(run) for run in runs)
    assert [getattr(e, "accepted", None) for e in one] == [
        getattr(e, "accepted", None) for e in other
    ]
    torch.testing.assert_close(scores(one), scores(other), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(runs[0].weights, runs[1].weights.cpu(), rtol=1e-3, atol=1e-5)
