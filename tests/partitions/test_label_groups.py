import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.core.errors import ConfigError
from secureafl.partitions.label_groups import LabelGroups


def deal(degree, labels, clients, seed=0):
    return LabelGroups(degree).deal(np.asarray(labels), clients, np.random.default_rng(seed))


@given(
    degree=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=80),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_is_dealt_once_and_nobody_goes_empty(degree, labels, data, seed):
    clients = data.draw(st.integers(1, len(labels)))
    shards = deal(degree, labels, clients, seed)
    assert len(shards.rows) == len(shards.group) == clients
    assert sorted(np.concatenate(shards.rows)) == list(range(len(labels)))
    assert all(len(rows) > 0 for rows in shards.rows)


@pytest.mark.parametrize(("clients", "classes"), [(50, 10), (10, 10), (23, 4), (3, 10), (1, 10)])
def test_groups_differ_by_at_most_one_client(clients, classes):
    group = deal(0.5, np.arange(2000) % classes, clients).group
    sizes = np.bincount(group)
    assert len(sizes) == min(clients, classes)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("clients", [10, 20, 35])
def test_full_degree_keeps_each_label_in_its_own_group(clients):
    labels = np.arange(5000) % 10
    shards = deal(1.0, labels, clients)
    for rows, group in zip(shards.rows, shards.group, strict=True):
        assert set(labels[rows]) == {group}


def test_fewer_clients_than_classes_share_the_labels():
    labels = np.arange(5000) % 10
    shards = deal(1.0, labels, 4)
    held = [set(labels[rows].tolist()) for rows in shards.rows]
    assert set.union(*held) == set(range(10))
    assert sum(map(len, held)) == 10  # each label with one client
    assert max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize("degree", [0.0, 0.1, 0.5, 0.8])
def test_share_in_the_own_group_is_the_degree_and_the_rest_is_spread_evenly(degree):
    labels = np.arange(40_000) % 10
    shards = deal(degree, labels, 20)
    table = np.zeros((10, 10))
    for rows, group in zip(shards.rows, shards.group, strict=True):
        table[group] += np.bincount(labels[rows], minlength=10)
    table /= 4000
    np.testing.assert_allclose(np.diag(table), degree, atol=0.03)
    np.testing.assert_allclose(table[~np.eye(10, dtype=bool)], (1 - degree) / 9, atol=0.02)


def test_clients_of_a_group_get_about_the_same():
    shards = deal(0.5, np.arange(50_000) % 10, 50)
    sizes = [len(rows) for rows in shards.rows]
    assert min(sizes) > 850
    assert max(sizes) < 1150


def test_same_seed_deals_the_same():
    one, same, other = (deal(0.5, np.arange(500) % 10, 20, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.rows, same.rows, strict=True))
    assert np.array_equal(one.group, same.group)
    assert not all(np.array_equal(a, b) for a, b in zip(one.rows, other.rows, strict=True))


def test_more_clients_than_samples_are_refused():
    with pytest.raises(ConfigError, match="clients = 4"):
        deal(0.5, [0, 1, 2], 4)


@pytest.mark.parametrize("degree", [-0.1, 1.1])
def test_degree_that_is_no_probability_is_refused(degree):
    with pytest.raises(ConfigError, match="degree"):
        LabelGroups(degree)
