"""Trust clipping with so few clients that one of them is a large share."""

import numpy as np
import pytest
import torch

from secureafl.core.peers import group_weights, length_weights, novelty_weights, peer_weights
from secureafl.core.server import Server, Upload
from secureafl.defenses import TrustClipping

DIM, ROUNDS = 20, 100


def distance_left(clients, upload_of_first):
    """How far from the others' goal a model ends, where it starts at 1; and how far it ever was."""
    rng = np.random.default_rng(clients)
    goal = rng.normal(size=DIM)
    goal /= np.linalg.norm(goal)
    server = Server(TrustClipping(), clients, 0.05)
    state, ever = server.start(torch.zeros(DIM, dtype=torch.float32)), []
    for _ in range(ROUNDS):
        for client in rng.permutation(clients):
            gradient = state.weights.numpy() - goal + 0.1 * rng.normal(size=DIM)
            sent = upload_of_first if client == 0 else gradient
            update = torch.as_tensor(sent, dtype=torch.float32).expand(DIM).clone()
            state.ledger.lend(state.round, state.weights)
            _, state = server.receive(state, Upload(int(client), state.round, update))
            ever.append(np.linalg.norm(state.weights.numpy() - goal))
    return ever[-1], max(ever)


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e17])
@pytest.mark.parametrize("clients", [3, 4])
def test_one_client_of_three_or_four_neither_holds_up_nor_destroys_a_model(clients, size):
    """By uploads that are next to nothing or as long as they may be; of two clients, each can."""
    last, furthest = distance_left(clients, size)
    assert last < 0.3
    assert furthest < 1.3


def weights_of_lengths(lengths, known=None):
    squares = torch.tensor(lengths, dtype=torch.float64) ** 2
    known = torch.tensor(known or [True] * len(lengths))
    return length_weights(torch.diag(squares), known).tolist()


def test_who_repeats_itself_counts_less_by_the_square_of_its_length():
    assert weights_of_lengths([1, 1, 1, 1.5, 3, 6]) == [1, 1, 1, 1, 1 / 4, 1 / 16]
    assert weights_of_lengths([1, 9, 1, 3], [True, False, True, True]) == [1, 0, 1, 1 / 4]
    assert weights_of_lengths([0, 0, 0, 1]) == pytest.approx([1, 1, 1, 0])


def test_of_two_clients_neither_is_the_usual_one():
    assert weights_of_lengths([1, 3]) == [1, 1]
    assert weights_of_lengths([1, 3, 0], [True, True, False]) == [1, 1, 0]


@pytest.mark.parametrize(("clients", "weight"), [(19, 1 / 4), (20, 1)])
def test_lengths_count_among_few_clients_only(clients, weight):
    squares = torch.ones(clients, dtype=torch.float64)
    squares[0] = 9
    known = torch.ones(clients, dtype=torch.bool)
    alike = group_weights(torch.diag(squares), known) * novelty_weights(torch.diag(squares), known)
    found = peer_weights(torch.diag(squares), known) / alike
    assert found.tolist() == pytest.approx([weight] + [1] * (clients - 1))
