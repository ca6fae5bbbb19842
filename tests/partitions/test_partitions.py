"""What every partition owes, and what the plain ones do."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.small import tiny

from secureafl.core.errors import ConfigError
from secureafl.partitions import PARTITIONS, ByRecording, Dirichlet, Iid
from secureafl.partitions.shards import Shards
from secureafl.simulation.simulator import Simulation

for_every_partition = pytest.mark.parametrize("kind", PARTITIONS)
LABELS = np.arange(1200) % 10
ORIGIN = np.repeat(np.arange(40), 30)


def deal(partition, clients, labels=LABELS, origin=ORIGIN, seed=0):
    return partition.deal(labels, clients, np.random.default_rng(seed), origin)


@for_every_partition
@given(clients=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_every_sample_is_dealt_once_and_nobody_goes_empty(kind, clients, seed):
    shards = deal(PARTITIONS[kind](), clients, seed=seed)
    assert len(shards.rows) == len(shards.group) == clients
    assert sorted(np.concatenate(shards.rows)) == list(range(1200))
    assert all(len(rows) > 0 for rows in shards.rows)
    assert shards.group.min() >= 0


@for_every_partition
def test_same_seed_deals_the_same(kind):
    one, same, other = (deal(PARTITIONS[kind](), 8, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.rows, same.rows, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one.rows, other.rows, strict=True))


@for_every_partition
def test_more_clients_than_there_is_for_them_are_refused_in_one_line(kind):
    with pytest.raises(ConfigError, match=r"clients = 1201: there are only [^\n]*$"):
        deal(PARTITIONS[kind](), 1201)


@pytest.mark.parametrize("kind", ["label_groups", "dirichlet"])
def test_labels_that_are_numbers_are_refused_with_the_remedy(kind):
    with pytest.raises(ConfigError, match="by_recording"):
        deal(PARTITIONS[kind](), 4, labels=LABELS.astype(np.float32))


def test_task_without_recordings_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="label_groups"):
        deal(ByRecording(), 4, origin=None)


def test_iid_clients_hold_as_much_of_everything():
    shards = deal(Iid(), 7, labels=np.arange(70_000) % 10)
    assert {len(rows) for rows in shards.rows} == {10_000}
    for rows in shards.rows:
        np.testing.assert_allclose(np.bincount(rows % 10) / 10_000, 0.1, atol=0.02)


@pytest.mark.parametrize("clients", [1, 3, 10, 40])
def test_recordings_stay_whole_and_are_spread_evenly(clients):
    shards = deal(ByRecording(), clients)
    held = [set(ORIGIN[rows].tolist()) for rows in shards.rows]
    assert sum(map(len, held)) == 40  # each with one client
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert shards.group.tolist() == list(range(clients))


def unevenness(concentration):
    """Mean over labels of the largest share one client holds."""
    labels = np.arange(20_000) % 10
    shards = deal(Dirichlet(concentration), 20, labels=labels)
    table = np.stack([np.bincount(labels[rows], minlength=10) for rows in shards.rows])
    return (table / table.sum(axis=0)).max(axis=0).mean()


def test_small_concentration_leaves_labels_with_few_clients_and_a_large_one_is_iid():
    assert unevenness(0.01) > 0.6
    assert 0.1 < unevenness(1.0) < 0.4
    assert unevenness(1e5) < 0.08  # 1 / 20 and noise


def test_group_of_a_client_is_its_main_label():
    shards = deal(Dirichlet(0.05), 10)
    for rows, group in zip(shards.rows, shards.group, strict=True):
        assert np.bincount(LABELS[rows]).argmax() == group


@pytest.mark.parametrize("concentration", [0.0, -1.0, 1e7])
def test_concentration_out_of_range_is_refused(concentration):
    with pytest.raises(ConfigError, match="concentration"):
        Dirichlet(concentration)


@dataclass(frozen=True)
class Own:
    """A partition of the user's own, which deals what it is told."""

    dealt: object

    def deal(self, labels, num_clients, rng, origin=None):
        return self.dealt


GROUP = np.zeros(3, int)
WRONG = {  # what three clients are dealt, and what is said of it
    "pair": (([[0], [1], [2]], GROUP), "it deals a tuple; give secureafl.Shards(rows, group)"),
    "nothing": (None, "it deals a NoneType"),
    "too few": (
        Shards([[0], [1]], GROUP),
        "it deals 2 shards; give an array of rows for each of 3",
    ),
    "empty client": (Shards([[0], [], [2]], GROUP), "client 1 have the shape (0,)"),
    "matrix": (Shards([[0], [[1]], [2]], GROUP), "client 1 have the shape (1, 1)"),
    "mask": (Shards([[True] * 90] * 3, GROUP), "client 0 are bool; give indices"),
    "real": (Shards([[0.0], [1], [2]], GROUP), "client 0 are float64"),
    "too large": (
        Shards([[0], [1], [90]], GROUP),
        "rows reach from 0 to 90; number the 90 samples",
    ),
    "negative": (Shards([[0], [1], [-1]], GROUP), "rows reach from -1 to 1"),
    "twice": (Shards([[0, 4], [1], [4]], GROUP), "row 4 is dealt 2 times; deal each"),
    "groups": (Shards([[0], [1], [2]], GROUP[:2]), "it gives 2 groups from 0"),
    "negative group": (Shards([[0], [1], [2]], GROUP - 1), "it gives 3 groups from -1"),
    "no groups": (Shards([[0], [1], [2]], None), "the groups have the shape ()"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_own_partition_that_deals_wrongly_is_told_in_one_line(mistake):
    dealt, said = WRONG[mistake]
    with pytest.raises(ConfigError) as caught:
        Simulation(dataclasses.replace(tiny(clients=3), partition=Own(dealt)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_partition_may_give_lists_and_leave_samples_out():
    dealt = Shards([[5, 0], [1], [2]], [0, 0, 4])
    simulation = Simulation(dataclasses.replace(tiny(clients=3), partition=Own(dealt)))
    simulation.advance()
    assert simulation.holdings == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
