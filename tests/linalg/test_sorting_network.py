import itertools

import numpy as np
import pytest

from secureafl.linalg.sorting_network import middle_network, sorting_network


def applied(network, columns):
    """Each column after all comparisons, in order."""
    columns = columns.copy()
    for low, high in network:
        pair = columns[[low, high]]
        columns[low], columns[high] = pair.min(axis=0), pair.max(axis=0)
    return columns


def zeros_and_ones(size):
    """A network that sorts all of these sorts everything."""
    return np.array(list(itertools.product([0, 1], repeat=size))).T


def permutations(size, count=20):
    rng = np.random.default_rng(size)
    return np.stack([rng.permutation(size) for _ in range(count)], axis=1)


@pytest.mark.parametrize("size", range(1, 13))
def test_every_sequence_of_zeros_and_ones_is_sorted(size):
    columns = zeros_and_ones(size)
    assert np.array_equal(applied(sorting_network(size), columns), np.sort(columns, axis=0))


@pytest.mark.parametrize("size", range(13, 71))
def test_permutations_are_sorted(size):
    columns = permutations(size)
    assert np.array_equal(applied(sorting_network(size), columns), np.sort(columns, axis=0))


@pytest.mark.parametrize("size", range(2, 13, 2))
def test_both_middle_values_of_zeros_and_ones_are_in_place(size):
    columns, middle = zeros_and_ones(size), slice(size // 2 - 1, size // 2 + 1)
    found = applied(middle_network(size), columns)[middle]
    assert np.array_equal(found, np.sort(columns, axis=0)[middle])


@pytest.mark.parametrize("size", range(14, 71, 2))
def test_both_middle_values_of_permutations_are_in_place(size):
    columns, middle = permutations(size), slice(size // 2 - 1, size // 2 + 1)
    found = applied(middle_network(size), columns)[middle]
    assert np.array_equal(found, np.sort(columns, axis=0)[middle])


@pytest.mark.parametrize("size", range(2, 71, 2))
def test_the_middle_alone_takes_fewer_comparisons(size):
    saved = len(sorting_network(size)) - len(middle_network(size))
    assert saved > 0 if size >= 8 else saved == 0


def test_fifty_values_take_as_many_comparisons_as_documented():
    assert len(sorting_network(50)) == 403
    assert len(middle_network(50)) == 330


@pytest.mark.parametrize("size", [1, 2, 7, 50, 70])
def test_pairs_are_places_of_the_sequence_lower_first(size):
    pairs = sorting_network(size)
    assert pairs.shape[1] == 2
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert ((pairs >= 0) & (pairs < size)).all()
