"""Who loses weight by its neighbours: a hidden camp, not clients of a kind of their own."""

import numpy as np
import pytest
import torch
from reference import neighbours as oracle

from secureafl.core import neighbours
from secureafl.core.neighbours import neighbour_weights, principal_axis, split

KINDS, SIZE = 10, 200


def honest(clients=50, kinds=KINDS, noise=0.06, seed=0):
    """Histories of clients of several kinds, with noise in about fifteen directions."""
    rng = np.random.default_rng(seed)
    sources = rng.normal(size=(kinds, SIZE)) / np.sqrt(SIZE)
    directions = rng.normal(size=(15, SIZE)) / np.sqrt(SIZE)
    return sources[np.arange(clients) % kinds] + noise * rng.normal(size=(clients, 15)) @ directions


def weights(histories, known=None, trust=None):
    rows = torch.from_numpy(histories)
    known = torch.ones(len(rows), dtype=torch.bool) if known is None else known
    trust = np.ones(len(rows)) if trust is None else trust
    return neighbour_weights(rows @ rows.T, known, torch.from_numpy(trust)).numpy()


def aim(seed=9):
    return np.random.default_rng(seed).normal(size=SIZE) / np.sqrt(SIZE)


@pytest.mark.parametrize(("malicious", "share"), [(5, 1.0), (10, 0.6), (10, 1.0), (20, 0.6)])
def test_clients_that_hide_a_common_aim_behind_honest_updates_lose_their_weight(malicious, share):
    histories = honest()
    histories[:malicious] += share * aim()
    found = weights(histories)
    assert (found[:malicious] < 0.5).all()
    assert (found[malicious:] == 1).all()


@pytest.mark.parametrize("malicious", [10, 20])
def test_an_aim_against_the_mean_of_all_is_no_better(malicious):
    histories = honest() + 0.3 * aim()  # a model that is held where it does not belong
    histories[:malicious] -= 1.2 * aim()
    found = weights(histories)
    assert (found[:malicious] < 0.5).all()
    assert (found[malicious:] == 1).all()


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 20))]
)
@pytest.mark.parametrize("kinds", [1, 2, 3, 5, 10, 50])
def test_honest_clients_keep_theirs_however_many_kinds_there_are(kinds, seed):
    assert (weights(honest(kinds=kinds, seed=seed)) == 1).all()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 10))]
)
def test_two_kinds_of_unequal_number_are_no_camps(seed):
    histories = honest(kinds=2, seed=seed)[:50]
    histories[:30] = histories[0] + 0.1 * honest(clients=30, kinds=1, seed=seed + 50)
    assert (weights(histories) == 1).all()


def test_large_natural_camps_keep_their_weight():
    """Vehicles and animals: who is near a client is on its side."""
    apart = np.where(np.arange(50) % KINDS < 4, 1.5, -1.0)
    assert (weights(honest() + apart[:, None] * aim()) == 1).all()


@pytest.mark.parametrize("kind", range(KINDS))
def test_a_kind_that_lost_its_trust_by_mistake_is_no_camp(kind):
    """It is compared with the next kind then, from which all of it differs in one direction."""
    sources = honest()
    sources[np.arange(50) % KINDS == kind] += 0.8 * (sources[(kind + 1) % KINDS] - sources[kind])
    trust = (np.arange(50) % KINDS != kind).astype(float)
    assert (weights(sources, trust=trust) == 1).all()


@pytest.mark.parametrize(("kinds", "of_five"), [(5, 4), (6, 3), (4, 4)])
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_where_malicious_clients_are_most_of_a_kind_its_honest_ones_are_not_blamed(
    kinds, of_five, share
):
    """Those are then unlike their neighbours; once the others are known, these stay known."""
    histories, number = honest(), np.arange(50)
    malicious = (number % KINDS < kinds) & (number < KINDS * of_five)
    histories[malicious] += share * aim()
    assert (weights(histories)[~malicious] == 1).all()
    held = weights(histories, trust=1.0 - malicious)
    assert (held[malicious] < 0.1).all()
    assert (held[~malicious] == 1).all()


def test_honest_neighbours_of_colluders_are_not_taken_for_them():
    """Two malicious clients for every three honest ones of four kinds of ten."""
    histories = honest()
    malicious = np.isin(np.arange(50) % KINDS, range(4)) & (np.arange(50) < 20)
    histories[malicious] += aim()
    found = weights(histories)
    assert (found[malicious] < 0.5).all()
    assert (found[~malicious] == 1).all()


def test_among_few_clients_nobody_is_judged():
    histories = honest(clients=19, kinds=5)
    histories[:4] += aim()
    assert (weights(histories) == 1).all()


def test_nobody_is_judged_where_halves_stand_against_each_other():
    histories = honest(kinds=5)
    histories[:25] += 1.5 * aim()
    assert (weights(histories) == 1).all()


@pytest.mark.parametrize("seed", [504, 1080, 1325, 2665])  # where more than half are far out
def test_no_majority_loses_its_weight_whoever_is_trusted(seed):
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(int(rng.integers(1, 8)), 30))
    histories = kinds[rng.integers(len(kinds), size=20)]
    histories = histories + rng.choice([0.05, 0.2, 0.5]) * rng.normal(size=(20, 30))
    colluding = rng.random(20) < rng.choice([0.3, 0.5, 0.6])
    histories[colluding] += rng.normal(size=30) * rng.choice([0.5, 1, 3])
    trust = rng.choice([0, 0.2, 1], size=20, p=rng.dirichlet([1, 1, 1]))
    assert (1 - weights(histories, trust=trust)).sum() < 10


def test_variance_is_that_of_the_vectors():
    rows = torch.randn(9, 5, dtype=torch.float64)
    chosen = torch.arange(9) < 4
    found = neighbours._variance(rows @ rows.T, chosen.double())
    torch.testing.assert_close(found, rows[chosen].var(dim=0).sum())


def test_unknown_clients_have_no_weight_and_no_say():
    histories = honest()
    histories[:10] += aim()
    known = torch.ones(60, dtype=torch.bool)
    known[50:] = False
    strange = np.concatenate([histories, 1e3 * np.ones((10, SIZE))])
    found = weights(strange, known)
    assert (found[50:] == 0).all()
    np.testing.assert_allclose(found[:50], weights(histories), atol=1e-9)


@pytest.mark.parametrize("histories", [np.zeros((20, 5)), np.ones((20, 5)), 1e15 * np.eye(20)])
def test_what_is_the_same_or_nothing_is_finite(histories):
    assert (weights(histories) == 1).all()


@pytest.mark.parametrize("malicious", [0, 4, 10, 20])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_weights_are_those_of_whole_vectors(malicious, seed):
    histories = honest(seed=seed)
    histories[:malicious] += 0.9 * aim()
    trust = np.random.default_rng(seed).uniform(0.2, 1, size=len(histories))
    expected = oracle.neighbour_weights(histories, trust)
    np.testing.assert_allclose(weights(histories, trust=trust), expected, atol=1e-3)


def test_a_camp_that_stands_out_of_noise_in_part_loses_a_part():
    histories = honest(noise=0.1)
    histories[:10] += 0.7 * aim()
    expected = oracle.neighbour_weights(histories, np.ones(50))
    assert 0.05 < expected[0] < 0.95
    np.testing.assert_allclose(weights(histories), expected, atol=0.02)


def test_axis_of_vectors_is_the_longest():
    rows = torch.diag(torch.tensor([3.0, 1.0, 0.5]))
    positions, strength = principal_axis(rows @ rows.T)
    torch.testing.assert_close(positions.abs(), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(strength, torch.tensor(9.0))


def test_split_is_where_most_variance_lies_between_the_camps():
    values = torch.tensor([0.0, 9.0, 0.2, -0.1, 8.8, 5.0])
    share, smaller = split(values, torch.tensor([True] * 5 + [False]))
    assert smaller.tolist() == [False, True, False, False, True, False]
    assert 0.99 < share < 1
