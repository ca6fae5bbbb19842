import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulation.small import ROUNDS, run, tiny
from simulation.spies import SPIES

from secureafl.arrivals import ARRIVALS
from secureafl.attacks import ATTACKS
from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.core.flat_model import call_flat
from secureafl.defenses import DEFENSES
from secureafl.experiment import Evaluation
from secureafl.runtime.attackers import choose_malicious
from secureafl.runtime.batches import ROWS, draw_batches
from secureafl.simulation.simulator import Simulation, simulate

for_every_defense = pytest.mark.parametrize("defense", DEFENSES)
for_every_arrival_model = pytest.mark.parametrize("arrivals", ARRIVALS)


def every_pair(attack="scaling", defense="secure_afl"):
    """Every defence under one attack, every attack on one defence, and one that looks at all."""
    pairs = {(d, attack) for d in DEFENSES} | {(defense, a) for a in [*ATTACKS, *SPIES.values()]}
    return pytest.mark.parametrize(("defense", "attack"), sorted(pairs))


@every_pair()
@for_every_arrival_model
def test_same_seed_gives_the_same_bits(defense, arrivals, attack):
    made = tiny(defense=defense, arrivals=arrivals, attack=attack)
    one, other = Simulation(made), Simulation(made)
    assert run(one) == run(other)
    assert torch.equal(one.weights, other.weights)


def test_another_seed_gives_another_run():
    assert list(simulate(tiny())) != list(simulate(tiny(seed=1)))


SOME = (1, 5, 8, 11)
ALL_OTHERS = tuple(set(range(ROUNDS)) - set(SOME))


@every_pair()
@for_every_arrival_model
@pytest.mark.parametrize(
    "rounds", [SOME, pytest.param(ALL_OTHERS, marks=pytest.mark.slow)], ids=["some", "all_others"]
)
def test_run_restored_at_any_round_equals_the_uninterrupted_one(defense, arrivals, attack, rounds):
    made = tiny(defense=defense, arrivals=arrivals, attack=attack)
    whole = Simulation(made)
    events, left, snapshots = [], [], []
    for _ in range(ROUNDS):
        snapshots.append({k: v.copy() for k, v in whole.snapshot().items()})
        left.append(len(events))
        events += whole.advance()
    for now in rounds:
        other = Simulation(made)
        other.restore(snapshots[now])
        assert other.round == now
        assert run(other) == events[left[now] :]
        assert torch.equal(other.weights, whole.weights)


@for_every_defense
def test_snapshot_is_not_changed_by_going_on(defense):
    simulation = Simulation(tiny(defense=defense, attack="sign_flip"))
    run(simulation, 6)
    snapshot = simulation.snapshot()
    copies = {name: array.copy() for name, array in snapshot.items()}
    run(simulation)
    assert all(np.array_equal(snapshot[name], copies[name]) for name in snapshot)


def test_restoring_leaves_the_snapshot_alone():
    simulation = Simulation(tiny())
    run(simulation, 5)
    snapshot = {name: array.copy() for name, array in simulation.snapshot().items()}
    copies = {name: array.copy() for name, array in snapshot.items()}
    other = Simulation(tiny())
    other.restore(snapshot)
    run(other)
    assert all(np.array_equal(snapshot[name], copies[name]) for name in snapshot)


def test_snapshot_of_another_experiment_is_refused():
    plain = Simulation(tiny(defense="async_sgd"))
    run(plain, 3)
    with pytest.raises(RunError, match=r"another experiment or version; .* provenance\.json"):
        Simulation(tiny(defense="secure_afl")).restore(plain.snapshot())


def fixed_before_training(simulation):
    return [
        *simulation.trace,
        *simulation.shards.rows,
        simulation.shards.group,
        simulation._jobs[:, ROWS:].numpy(),
    ]


def same_arrays(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@for_every_arrival_model
def test_every_defense_and_attack_faces_the_same_trace(arrivals):
    simulations = [
        Simulation(tiny(arrivals=arrivals, defense=defense, attack=attack))
        for defense in DEFENSES
        for attack in ATTACKS
    ]
    first = simulations[0]
    for other in simulations[1:]:
        assert same_arrays(fixed_before_training(first), fixed_before_training(other))
        assert torch.equal(first.weights, other.weights)
    attacked = [s.malicious for s in simulations if s.malicious.any()]
    assert len(attacked) == len(simulations) - len(DEFENSES)
    assert same_arrays(attacked, [attacked[0]] * len(attacked))


def test_events_tell_the_trace():
    simulation = Simulation(tiny(attack="sign_flip"))
    arrivals = [e for e in run(simulation) if isinstance(e, ArrivalEvent)]
    trace = simulation.trace
    assert [e.round for e in arrivals] == list(range(ROUNDS))
    assert [e.client for e in arrivals] == trace.client.tolist()
    assert [e.staleness for e in arrivals] == (np.arange(ROUNDS) - trace.version).tolist()
    assert [e.malicious for e in arrivals] == simulation.malicious[trace.client].tolist()
    assert all((e.reason == "") == e.accepted for e in arrivals)


def test_only_expected_models_are_kept():
    simulation = Simulation(tiny(rounds=60, arrivals={"kind": "uniform", "max_staleness": 3}))
    while not simulation.finished:
        simulation.advance()
        kept = {int(name[7:]) for name in simulation.snapshot() if name.startswith("ledger.")}
        assert kept == {
            v for v in simulation.trace.version[simulation.round :] if v <= simulation.round
        }


@pytest.mark.parametrize(
    ("every", "late", "rounds", "expected"),
    [
        (1000, 1, 12, [0, 12]),
        (5, 1, 12, [0, 5, 10, 12]),
        (4, 2, 40, [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 38, 40]),
        (1000, 5, 100, [0, 92, 94, 96, 98, 100]),
        (1000, 5, 1, [0, 1]),
    ],
)
def test_model_is_measured_when_promised(every, late, rounds, expected):
    made = tiny(rounds=rounds, evaluation={"every": every, "late": late}, defense="async_sgd")
    events = list(simulate(made))
    measured = [e.round for e in events if isinstance(e, EvaluationEvent)]
    assert measured == expected
    assert sum(isinstance(e, ArrivalEvent) for e in events) == rounds


@given(every=st.integers(1, 50), late=st.integers(1, 8), total=st.integers(1, 500))
def test_late_evaluations_lie_in_the_last_tenth_and_end_with_the_run(every, late, total):
    plan = Evaluation(every, late)
    rounds = plan.late_rounds(total)
    assert rounds[-1] == total
    assert len(rounds) <= late
    assert min(rounds) >= int(0.9 * total)
    assert set(rounds) <= plan.rounds(total)
    assert {0, total} <= plan.rounds(total) <= set(range(total + 1))


def test_evaluation_happens_after_the_arrivals_it_counts():
    events = list(simulate(tiny(evaluation={"every": 4, "late": 1})))
    arrivals = 0
    for event in events:
        if isinstance(event, EvaluationEvent):
            assert event.round == arrivals
        else:
            arrivals += 1
    assert arrivals == ROUNDS


def test_summed_gradients_make_the_same_steps_as_means():
    plain = tiny(defense="async_sgd", rounds=30)
    summed = dataclasses.replace(
        plain, training=dataclasses.replace(plain.training, reduction="sum")
    )
    one, other = Simulation(plain), Simulation(summed)
    run(one, 30)
    run(other, 30)
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-5, atol=1e-6)


def test_first_step_is_one_gradient_step_on_the_drawn_batch():
    made = tiny(defense="async_sgd")
    simulation = Simulation(made)
    before, data = simulation.weights, made.task.load()
    rows = simulation._jobs[0, ROWS:]
    simulation.advance()
    mean, std = data.pixel_mean[:, None, None], data.pixel_std[:, None, None]
    images = (data.train_inputs[rows].float() / 255 - mean) / std
    weights = before.clone().requires_grad_()
    outputs = call_flat(made.task.model(), weights, images)
    made.task.loss(outputs, data.train_labels[rows]).backward()
    torch.testing.assert_close(simulation.weights, before - 0.1 * weights.grad)


def test_attack_success_is_measured_on_triggered_images_of_other_classes():
    made = tiny(attack={"kind": "scaling", "target_class": 1, "trigger_side": 2})
    simulation = Simulation(made)
    measured = run(simulation)[-1].metrics
    data = made.task.load()
    mean, std = data.pixel_mean[:, None, None], data.pixel_std[:, None, None]
    images = (data.test_inputs.float() / 255 - mean) / std
    images[:, :, -2:, -2:] = torch.from_numpy(simulation.snapshot()["attack.trigger"])
    images = images[data.test_labels != 1]
    guesses = call_flat(made.task.model(), simulation.weights, images).argmax(dim=1)
    assert measured["asr"] == pytest.approx(float((guesses == 1).double().mean()))
    assert list(measured) == ["ter", "asr"]


def test_training_lowers_the_error():
    events = list(simulate(tiny(rounds=300, defense="async_sgd")))
    first, last = (e.metrics["ter"] for e in events if isinstance(e, EvaluationEvent))
    assert last < 0.6 * first


@pytest.mark.parametrize("attack", ["sign_flip", "gaussian"])
def test_malicious_uploads_change_the_model(attack):
    plain, attacked = Simulation(tiny()), Simulation(tiny(attack=attack, malicious=6))
    run(plain)
    run(attacked)
    assert not torch.equal(plain.weights, attacked.weights)


def test_torchs_own_generator_is_left_alone():
    before = torch.random.get_rng_state()
    list(simulate(tiny(attack="gaussian")))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_gpu_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        assert Simulation(tiny(device="cuda")).device.type == "cuda"
    else:
        with pytest.raises(ConfigError, match="cuda"):
            Simulation(tiny(device="cuda"))


@pytest.mark.parametrize("placement", ["random", "grouped"])
@pytest.mark.parametrize(
    ("given_share", "count"), [(0, 0), (0.2, 10), (0.33, 16), (7, 7), (50, 50)]
)
def test_as_many_clients_are_malicious_as_asked(placement, given_share, count):
    made = tiny(clients=50, malicious=given_share, placement=placement, attack="sign_flip")
    assert choose_malicious(made, np.arange(50) % 10).sum() == count


@given(seed=st.integers(0, 1000), clients=st.integers(3, 60), share=st.floats(0, 1), data=st.data())
def test_grouped_attackers_fill_whole_groups(seed, clients, share, data):
    groups = data.draw(st.integers(1, min(10, clients)))
    group = np.random.default_rng(seed).permutation(np.arange(clients) % groups)
    made = tiny(
        seed=seed, clients=clients, malicious=share, placement="grouped", attack="sign_flip"
    )
    malicious = choose_malicious(made, group)
    shares = [malicious[group == g].mean() for g in range(groups)]
    assert sum(0 < s < 1 for s in shares) <= 1  # at most one group is shared


def test_malicious_clients_depend_on_the_seed_alone():
    group = np.arange(50) % 10
    made = [tiny(seed=s, clients=50, malicious=10, attack="sign_flip") for s in (0, 0, 1)]
    one, same, other = (choose_malicious(m, group) for m in made)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_without_an_attack_nobody_is_malicious():
    assert not choose_malicious(tiny(malicious=0.9), np.zeros(6, int)).any()


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    batch=st.integers(1, 12),
    rounds=st.integers(1, 40),
)
def test_each_client_passes_over_its_own_samples_without_repeats(seed, sizes, batch, rounds):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(sum(sizes))
    shards = np.split(rows, np.cumsum(sizes)[:-1])
    client = rng.integers(len(sizes), size=rounds)
    batches = draw_batches(client, shards, batch, rng)
    assert batches.shape == (rounds, batch)
    for i, shard in enumerate(shards):
        stream = batches[client == i].reshape(-1)
        for start in range(0, len(stream), len(shard)):
            one_pass = stream[start : start + len(shard)]
            assert len(set(one_pass.tolist())) == len(one_pass)
            assert set(one_pass.tolist()) <= set(shard.tolist())


def test_passes_are_shuffled_anew():
    shard = np.arange(100)
    batches = draw_batches(np.zeros(2, int), [shard], 100, np.random.default_rng(0))
    assert not np.array_equal(batches[0], batches[1])
    assert not np.array_equal(batches[0], shard)
