"""The timed code computes what it should."""

import pytest
import torch

from secureafl.bench.cases import Case
from secureafl.bench.graph import make_step
from secureafl.bench.host import time_arrivals
from secureafl.bench.load import fill, make_load
from secureafl.bench.peers import PEERS
from secureafl.bench.plain import Plain, random_plain, sorted_median
from secureafl.core.types import Arrival, ServerView
from secureafl.defenses import AsyncSgd, SecureAfl
from secureafl.estimators import Lbfgs
from secureafl.kernels.reference import inner_products
from secureafl.kernels.tiles import BASE, GRADIENT, OWN, as_tiles, read_client

CPU = torch.device("cpu")


def defense_of(buffer):
    return SecureAfl(estimator=Lbfgs(buffer_size=buffer))


def curved_rows(case):
    """Vectors of clients with another curvature in every coordinate, and these curvatures."""
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(case.clients, OWN + 2 * case.buffer, case.parameters, generator=draw)
    bend = 0.5 + torch.rand(case.clients, case.parameters, generator=draw)
    rows[:, OWN + case.buffer :] = bend[:, None] * rows[:, OWN : OWN + case.buffer]
    rows[:, GRADIENT] = bend * rows[:, BASE]
    return rows, bend


def remembering(rows, defense, weights):
    """A state that holds these vectors, and their true inner products."""
    state = defense.init(len(rows), weights)
    fill(state, rows.shape[2])
    vectors = state.memory.vectors
    tiles = as_tiles(rows.flatten(0, 1), len(vectors))
    vectors.copy_(tiles.reshape(vectors.shape))
    inner = torch.stack([inner_products(mine, weights) for mine in rows])
    state.memory.gram.copy_(inner[:, :-1, :-1])
    state.memory.along.copy_(inner[:, :-1, -1])
    return state


@pytest.mark.parametrize("buffer", [1, 3, 5])
@pytest.mark.parametrize("clients", [6, 7])
def test_plain_step_is_the_step_of_the_product(buffer, clients):
    case = Case(clients, 333, buffer)
    rows, bend = curved_rows(case)
    # All uploads pass this filter: the plain version refuses none.
    defense = SecureAfl(alpha=1.0, estimator=Lbfgs(buffer_size=buffer))
    weights = 0.3 * torch.randn(case.parameters, generator=torch.Generator().manual_seed(2))
    state = remembering(rows, defense, weights)
    steps, changes = rows[:, OWN:].clone().chunk(2, dim=1)
    plain = Plain(rows[:, GRADIENT].clone(), rows[:, BASE].clone(), steps, changes)
    for number in range(5 * clients // 2):  # so that pairs made on the way are used as well
        client = number % clients
        gradient = bend[client] * weights
        arrival = Arrival(torch.tensor(client), torch.tensor(0), gradient, weights)
        view = ServerView(torch.tensor(number), weights, 0.1)
        decision, state = defense.step(state, arrival, view)
        expected = plain.step(client, gradient, weights, weights)
        assert decision.accepted
        assert decision.ready
        torch.testing.assert_close(decision.direction, expected, rtol=1e-5, atol=1e-5)
        weights = weights - 0.1 * decision.direction


@pytest.mark.parametrize("size", [160, 333])  # whole tiles; the last one in part
def test_filled_memory_is_what_its_tables_say_on_average(size):
    defense, weights = defense_of(3), torch.zeros(size)
    state = defense.init(100, weights)
    fill(state, size)
    memory = state.memory
    rows = torch.stack([read_client(memory.vectors, torch.tensor(k), size) for k in range(100)])
    torch.testing.assert_close(rows[:, GRADIENT], 0.1 * rows[:, BASE])
    torch.testing.assert_close(rows[:, 5:], 0.1 * rows[:, 2:5])
    mean = torch.stack([inner_products(mine, weights)[:-1, :-1] for mine in rows]).mean(dim=0)
    torch.testing.assert_close(mean, memory.gram[0], rtol=0.05, atol=0.03 * size)
    padding = memory.vectors.transpose(0, 2).flatten(2)
    assert padding.count_nonzero() == rows.count_nonzero()
    assert memory.known.all()


def test_filled_memory_gives_pairs_estimates_and_steps():
    case = Case(9, 500, 3)
    load, defense = make_load(case.parameters, CPU), defense_of(3)
    state = defense.init(case.clients, load.start)
    fill(state, case.parameters)
    gradient = load.upload(0, load.start)
    arrival = Arrival(torch.tensor(0), torch.tensor(0), gradient, load.start)
    decision, state = defense.step(state, arrival, ServerView(torch.tensor(0), load.start, 0.01))
    assert decision.ready
    assert decision.direction.isfinite().all()
    assert state.notes.appended[0] == 7, "the pair of this upload must have been worth keeping"


def test_random_plain_makes_finite_steps():
    case = Case(8, 200, 3)
    plain, load = random_plain(case, CPU), make_load(200, CPU)
    weights = load.start
    for number in range(20):
        gradient = load.upload(number, weights)
        weights = weights - 0.01 * plain.step(number % 8, gradient, weights, weights)
        assert weights.isfinite().all()
    assert plain.state_bytes == case.memory_bytes + 8 * 8 * (9 + 9)


def test_recorded_step_leaves_model_and_state_where_they_were():
    case = Case(5, 100, 3)
    step, state = make_step(defense_of(3), case, CPU)
    along = state.memory.along
    for _ in range(3):
        step()
    assert along is state.memory.along
    assert along.any(), "the inner products must have followed the model"


def test_times_are_positive_and_the_state_is_counted():
    timing = time_arrivals(defense_of(3), Case(4, 100, 3))
    assert all(time > 0 for time in timing.milliseconds)
    tiles = 7 * 16  # 100 parameters, filled up
    assert timing.state_bytes > 4 * 8 * tiles * 4
    assert time_arrivals(AsyncSgd(), Case(4, 100)).state_bytes == 0


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("clients", [5, 6])
def test_peers_compute_the_median(name, clients):
    values = torch.randn(clients, 40, generator=torch.Generator().manual_seed(0))
    if name.endswith("_flower"):
        pytest.importorskip("flwr")
    found = PEERS[name].prepare(values)()
    if name == "round_flower":
        assert found[0].tensor_type  # packed for the network
        return
    found = found[0] if isinstance(found, (tuple, list)) else found
    expected = values.median(dim=0).values if name == "median_torch" else sorted_median(values)
    torch.testing.assert_close(torch.as_tensor(found), expected)
