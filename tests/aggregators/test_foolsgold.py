import numpy as np
import torch
from aggregating import aggregated, assert_close, crowds, everybody
from hypothesis import given
from hypothesis import strategies as st
from reference import foolsgold as oracle

from secureafl.aggregators import FoolsGold


@st.composite
def runs(draw):
    """Several calls with the same number of clients."""
    seeds = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
    clients, ties = draw(st.integers(1, 10)), draw(st.booleans())
    calls = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        values = 1 + rng.normal(size=(clients, 4))
        present = rng.random(clients) < 0.8
        present[0] = True
        values = np.round(values) if ties else values
        values[~present] = 1e30
        calls.append((values, present))
    return clients, calls


@given(runs())
def test_foolsgold_equals_its_oracle_call_after_call(run):
    clients, calls = run
    rule, expected = FoolsGold(), oracle.FoolsGold(clients, 4)
    state = rule.init(clients, torch.zeros(4, dtype=torch.float64))
    for values, present in calls:
        found, state = rule.aggregate(state, torch.from_numpy(values), torch.from_numpy(present))
        # The logit is steep near 0 and 1.
        np.testing.assert_allclose(found, expected.aggregate(values, present), rtol=1e-6, atol=1e-8)


@given(crowds(dims=(3, 8), kinds=("huge", "tiny", "twins")))
def test_scale_and_twins_are_as_in_the_oracle(crowd):
    found = aggregated(FoolsGold(), *crowd)
    expected = oracle.FoolsGold(*crowd.values.shape).aggregate(*crowd)
    assert_close(found, expected, crowd, 1e-6)


def test_sybils_lose_their_voice_and_honest_clients_keep_theirs():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=(6, 30)), np.tile(rng.normal(size=30), (4, 1))])
    found = aggregated(FoolsGold(), values, everybody(10))
    np.testing.assert_allclose(found, values[:6].mean(axis=0), atol=1e-9)


def test_history_gives_away_sybils_that_differ_from_call_to_call():
    rng = np.random.default_rng(1)
    common, rule, first = rng.normal(size=50), FoolsGold(), 0.0
    state = rule.init(8, torch.zeros(50, dtype=torch.float64))
    present = torch.ones(8, dtype=torch.bool)
    for call in range(200):
        honest = rng.normal(size=(5, 50))
        sybils = common + 3 * rng.normal(size=(3, 50))
        values = torch.from_numpy(np.concatenate([honest, sybils]))
        found, state = rule.aggregate(state, values, present)
        astray = np.linalg.norm(found.numpy() - honest.mean(axis=0))
        first = astray if call == 0 else first
    assert astray < 1e-3 < first


def test_crowd_in_which_everybody_has_a_twin_is_averaged():
    values = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    np.testing.assert_allclose(aggregated(FoolsGold(), values, everybody(4)), values.mean(axis=0))


def test_absent_client_keeps_its_history():
    rule = FoolsGold()
    state = rule.init(2, torch.zeros(3))
    _, state = rule.aggregate(state, torch.ones(2, 3), torch.tensor([True, True]))
    _, state = rule.aggregate(state, torch.full((2, 3), 5.0), torch.tensor([True, False]))
    assert torch.equal(state, torch.tensor([[6.0] * 3, [1.0] * 3]))
