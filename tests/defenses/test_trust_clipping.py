import numpy as np
import pytest
import torch
from defending import DIM, SideBySide, streams
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.trust_clipping import TrustClippingServer, group_weights, novelty_weights

from secureafl.core import peers
from secureafl.core.errors import ConfigError
from secureafl.core.server import Server, Upload
from secureafl.core.trees import name_tensors
from secureafl.defenses import TrustClipping
from secureafl.kernels.dispatch import using_kernels

UNIT = np.full(DIM, DIM**-0.5)


def side_by_side(num_clients=7, momentum=0.95):
    oracle = TrustClippingServer(num_clients, momentum)
    both = SideBySide(TrustClipping(momentum), num_clients, oracle)
    both.tolerance = 1e-4  # inverses, and steep slopes after them
    return both


@pytest.mark.parametrize("kernels", ["reference", "auto"])
@settings(max_examples=10)
@given(stream=streams(7, min_size=15, max_size=35), momentum=st.sampled_from([0.0, 0.5, 0.95]))
def test_streams_agree_with_the_oracle(kernels, stream, momentum):
    with using_kernels(kernels):
        side_by_side(momentum=momentum).play(stream)


@pytest.mark.parametrize("kernels", ["reference", "auto"])
@settings(max_examples=3)
@given(stream=streams(3, min_size=60, max_size=80))
def test_long_streams_agree_in_which_curvature_counts_and_steps_are_warm(kernels, stream):
    with using_kernels(kernels):
        side_by_side(3).play(stream)


@settings(max_examples=3)
@given(stream=streams(25, min_size=40, max_size=60))
def test_streams_of_many_clients_agree_who_are_judged_at_every_second_arrival(stream):
    side_by_side(25).play(stream)


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 12), dim=st.integers(1, 15))
def test_weights_agree_with_regressions_client_by_client(seed, clients, dim):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(clients, dim)) * rng.lognormal(size=(clients, 1))
    known = rng.random(clients) < 0.8
    known[0] = True
    gram, which = torch.from_numpy(rows @ rows.T), torch.from_numpy(known)
    shown = list(rows[known])
    for found, expected in (
        (peers.novelty_weights(gram, which), novelty_weights(shown)),
        (peers.group_weights(gram, which), group_weights(shown)),
    ):
        np.testing.assert_allclose(found[which], expected, rtol=1e-7, atol=1e-9)
        assert (found[~which] == 0).all()


def test_newtons_iteration_gives_the_inverse():
    """What a GPU computes; the meta device takes its path, so it is called as if it were one."""
    rows = torch.randn(60, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[20:] = rows[0] / rows[0].norm() * 2  # forty of one mind: the worst condition
    for ridge in (0.1, 0.3, 1.0):
        expected = torch.linalg.inv(rows @ rows.T + ridge * torch.eye(60, dtype=torch.float64))
        found = peers.newton_inverse(
            rows @ rows.T + ridge * torch.eye(60, dtype=torch.float64), ridge
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 / ridge)


def crowd(rng, honest, dim=400):
    """Honest clients of ten kinds, their usual length, and a direction for others to aim at."""
    kinds = rng.normal(size=(10, dim))
    kinds -= kinds.mean(axis=0)
    rows = kinds[np.arange(honest) % 10] + 0.2 * rng.normal(size=(honest, dim))
    length = np.linalg.norm(rows, axis=1).mean()
    return rows, length, rng.normal(size=dim)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def weights_of(rows):
    gram, known = torch.from_numpy(rows @ rows.T), torch.ones(len(rows), dtype=torch.bool)
    return (peers.novelty_weights(gram, known) * peers.group_weights(gram, known)).numpy()


def test_nobody_loses_where_all_are_honest():
    rows, _, _ = crowd(np.random.default_rng(1), honest=50)
    assert (weights_of(rows) > 0.5).all()


@pytest.mark.parametrize("malicious", [10, 20])
@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
def test_a_common_aim_under_private_covers_does_not_count(malicious, share):
    rng = np.random.default_rng(2)
    rows, length, aim = crowd(rng, 50 - malicious)
    covers = unit(rng.normal(size=(malicious, rows.shape[1])))
    lies = length * unit(share * unit(aim) + np.sqrt(1 - share**2) * covers)
    weights = weights_of(np.vstack([rows, lies]))
    assert weights[-malicious:].mean() < 0.4
    assert (weights[:-malicious] > 0.5).mean() >= 0.9


def test_weights_of_fifty_clients_agree_with_the_oracle():
    """Twenty malicious ones are a block that whitening takes apart."""
    rng = np.random.default_rng(2)
    rows, length, aim = crowd(rng, 30, dim=200)
    rows = np.vstack([rows, length * unit(0.4 * unit(aim) + unit(rng.normal(size=(20, 200))))])
    known = torch.ones(50, dtype=torch.bool)
    found = peers.group_weights(torch.from_numpy(rows @ rows.T), known)
    np.testing.assert_allclose(found, group_weights(list(rows)), rtol=1e-7, atol=1e-9)


def test_clients_that_are_all_unlike_each_other_keep_their_weight():
    """So do ten clients with a class each: what is usual is taken from the clients themselves."""
    rows = np.random.default_rng(3).normal(size=(10, 500))
    assert (weights_of(rows) > 0.5).all()


def test_clients_with_animals_among_clients_with_vehicles_are_counted():
    """Six kinds have something in common and four other kinds too; nobody is malicious."""
    rng = np.random.default_rng(4)
    kinds = rng.normal(size=(10, 400))
    kinds += 0.8 * np.where(np.arange(10) < 6, 1.0, -1.5)[:, None] * rng.normal(size=400)
    rows = kinds[np.arange(50) % 10] + 0.3 * rng.normal(size=(50, 400))
    assert (weights_of(rows) >= 0.5).all()


def test_a_half_that_is_of_one_mind_loses_nothing():
    """Five companies on one track, and five on a track each."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(10, 400))
    rows[:5] = rows[0] + 0.2 * rng.normal(size=(5, 400))
    assert (weights_of(rows)[:5] == 1).all()
    fewer = rows[[0, 1, 2, 3, 5, 6, 7, 8, 9]]  # four of nine are not a half
    assert (weights_of(fewer)[:4] < 0.5).all()


def test_malicious_clients_in_two_groups_that_share_nothing_do_not_count():
    """Each of 40 % sends one half of what they aim at; no cover."""
    rng = np.random.default_rng(6)
    rows, length, aim = crowd(rng, 30)
    halves = np.array([np.where(np.arange(400) % 2 == k, aim, 0) for k in (0, 1)])
    lies = length * unit(halves[np.arange(20) % 2])
    weights = weights_of(np.vstack([rows, lies]))
    assert (weights[30:] == 0).all()
    assert (weights[:30] >= 0.5).all()


def test_who_is_cut_to_next_to_nothing_time_after_time_does_not_count():
    both, rng = side_by_side(), np.random.default_rng(0)
    for _ in range(15):
        decisions = [
            both.arrive(client, 0, (40 if client == 0 else 1) * (UNIT + 0.3 * rng.normal(size=DIM)))
            for client in range(7)
        ]
    assert not decisions[0].accepted
    assert all(decision.accepted for decision in decisions[1:])


def test_one_upload_that_is_far_too_long_costs_no_trust():
    both, rng = side_by_side(), np.random.default_rng(0)
    for turn in range(10):
        for client in range(7):
            long = client == 0 and turn == 6
            both.arrive(client, 0, (1e6 if long else 1) * (UNIT + 0.3 * rng.normal(size=DIM)))
    assert both.arrive(0, 0, UNIT).accepted


def length_of(decision):
    return float(torch.linalg.vector_norm(decision.direction))


def test_nobody_moves_the_model_before_half_of_the_clients_are_known():
    both = side_by_side()
    for client, norm in [(0, 50.0), (0, 9.9e17), (1, 1e10), (2, 1.0)]:
        decision = both.arrive(client, 0, norm * UNIT)
        assert not decision.ready
        assert length_of(decision) == 0
    assert both.arrive(3, 0, 2 * UNIT).ready


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6], [4, 5, 6, 0, 1, 2, 3]])
def test_a_minority_cannot_lengthen_a_step_whoever_comes_first(order):
    """In longest honest uploads: two for the centre, one more, twice stretched, twice for trust."""
    both, rng = side_by_side(), np.random.default_rng(0)
    for _ in range(8):
        for client in order:
            honest = client < 4
            upload = rng.normal(size=DIM) * (1 if honest else 1e12)
            if honest:
                upload /= np.linalg.norm(upload)
            assert length_of(both.arrive(client, 0, upload)) <= 12 + 1e-9


def test_where_gradients_explode_steps_grow_slowly_and_nobody_is_blamed():
    """All clients at once, as where a model is being destroyed."""
    both, rng = side_by_side(), np.random.default_rng(0)
    for turn in range(1, 25):
        for client in range(7):
            upload = unit(rng.normal(size=DIM)) * (1 if turn <= 4 else 1e3)
            decision = both.arrive(client, 0, upload)
            # The first ones have length 1. The radius and the centre, which follows it, stretched:
            assert length_of(decision) <= 2 * (1.5 + 1.5) * np.sqrt(turn)
    assert decision.accepted
    assert 1.5 < float(both.state.defense.records.distances.median()) < 1.5 * np.sqrt(24)


@pytest.mark.parametrize("kernels", ["reference", "auto"])
def test_no_step_is_longer_than_an_update_may_be(kernels):
    with using_kernels(kernels):
        both, rng, stepped = side_by_side(), np.random.default_rng(0), []
        for client in list(range(7)) * 12:
            length = rng.choice([3e17, 9.9e17])
            decision = both.arrive(client, 0, length * unit(UNIT + 0.1 * rng.normal(size=DIM)))
            stepped.append(bool(decision.ready))
            assert not decision.ready or length_of(decision) <= 1e18
    assert any(stepped)
    assert not all(stepped[7:])


def test_a_minority_cannot_hold_back_what_is_usual():
    """It comes first, with uploads of no length to speak of; then the others come."""
    both, rng = side_by_side(), np.random.default_rng(0)
    for _ in range(20):
        for client in range(3):
            both.arrive(client, 0, 1e-6 * unit(rng.normal(size=DIM)))
    for _ in range(10):
        lengths = []
        for client in range(7):
            length = 1e-6 if client < 3 else 1
            lengths.append(length_of(both.arrive(client, 0, length * unit(rng.normal(size=DIM)))))
    assert np.mean(lengths[3:]) > 0.5


def test_steps_warm_up_with_the_median_clients_uploads_whoever_hurries():
    both, rng, lengths = side_by_side(5), np.random.default_rng(0), []
    for _ in range(12):
        for client in (0, 0, 0, 1, 1, 1, 2, 3, 4):  # two of five hurry
            decision = both.arrive(client, 0, UNIT + 0.01 * rng.normal(size=DIM))
        lengths.append(length_of(decision))
    np.testing.assert_allclose(lengths, np.minimum(np.arange(1, 13) / 5, 1), rtol=0.05)


def test_with_more_clients_than_a_panel_the_warm_up_takes_no_more_arrivals():
    """Of two and a half panels' clients two uploads each are as many as five of one panel's."""
    clients, found = 320, {}
    server, state = start(0, DIM, clients, sketch_size=8)
    for number in range(2 * clients):
        state.ledger.lend(state.round, state.weights)
        upload = Upload(number % clients, state.round, torch.from_numpy(UNIT).float())
        decision, state = server.receive(state, upload)
        found[number] = length_of(decision)
    assert found[clients] == pytest.approx(0.5, rel=0.01)
    assert found[2 * clients - 1] == pytest.approx(1.0, rel=0.01)


def test_pace_is_no_power():
    """At thirty times the others' pace a client's steps weigh at most as half as fast again."""
    both, rng, spent = side_by_side(4), np.random.default_rng(0), [0.0] * 4
    turns = 8
    for _ in range(turns):
        for client in [0] * 30 + [1, 2, 3]:
            decision = both.arrive(client, 0, UNIT + 0.3 * rng.normal(size=DIM))
            spent[client] += float(decision.scores["pace"])
    assert spent[0] <= 1.5 * turns + 5
    assert both.state.defense.standing.mean_trust > 0.9, (
        "else the others' steps would be longer for it"
    )
    assert min(spent[1:]) == turns


def test_the_only_client_there_is_need_not_wait_for_others():
    both = side_by_side(1)
    decisions = [both.arrive(0, 0, UNIT) for _ in range(20)]
    assert all(decision.accepted and decision.ready for decision in decisions)


def test_uploads_at_usual_paces_are_not_held_up():
    both, rng = side_by_side(7), np.random.default_rng(0)
    held = [
        float(both.arrive(int(client), 0, UNIT + rng.normal(size=DIM)).scores["pace"]) < 0.5
        for client in rng.integers(7, size=300)
    ]
    assert np.mean(held) < 0.03


def start(seed, size=139_960, clients=50, **given):
    server = Server(TrustClipping(**given), clients, 0.01, seed=seed)
    return server, server.start(torch.zeros(size))


def test_state_does_not_grow_with_clients_times_parameters():
    _, state = start(0)
    held = sum(t.numel() * t.element_size() for t in name_tensors(state.defense, "").values())
    assert held <= 4e6, "four vectors per client would be 112 MB"


def test_what_is_sketched_with_is_the_seeds_and_else_nobody_knows_it():
    # Of vectors this long the order has many rows; one row is the same by chance once in a while.
    orders = [start(seed, 50_000)[1].defense.sketch.order for seed in (1, 1, 2, None)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[0], orders[3])


def test_drawing_a_sketch_leaves_the_processs_random_numbers_alone():
    before = torch.get_rng_state()
    start(None, 1000)
    assert torch.equal(torch.get_rng_state(), before)


def test_sketched_and_exact_runs_decide_alike():
    rng = np.random.default_rng(5)
    kinds = rng.normal(size=(5, 6000))
    clients = np.arange(400) % 10
    uploads = kinds[clients % 5] + rng.normal(size=(400, 6000))
    uploads[clients >= 8] = 3 * kinds.sum(axis=0) + rng.normal(size=(80, 6000))
    found = []
    for size in (6000, 4096):
        server, state = start(0, 6000, 10, sketch_size=size)
        weights = []
        for client, upload in zip(clients, uploads, strict=True):
            state.ledger.lend(state.round, state.weights)
            update = torch.from_numpy(upload).float()
            decision, state = server.receive(state, Upload(int(client), state.round, update))
            weights.append(float(decision.scores["weight"]))
        found.append(weights[-50:])
    exact, sketched = np.array(found)
    lying = clients[-50:] >= 8
    assert max(exact[lying].max(), sketched[lying].max()) < 0.01
    assert np.abs(exact - sketched).mean() < 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"momentum": 1.0}, "momentum = 1.0: give 0 .* to below 1"),
        ({"sketch_size": 0}, "sketch_size = 0: give 1 number or more"),
    ],
)
def test_settings_that_make_no_sense_are_told(given, message):
    with pytest.raises(ConfigError, match=message):
        TrustClipping(**given)


def test_of_many_clients_who_sit_in_panels_the_malicious_do_not_count():
    """150 clients, 30 of them with one aim; each is judged among half of the others."""
    rng = np.random.default_rng(7)
    kinds, aim = rng.normal(size=(10, 600)), 24 * unit(rng.normal(size=600))
    server, state = start(0, 600, 150)
    for _ in range(4):
        for client in rng.permutation(150):
            honest = kinds[client % 10] + rng.normal(size=600)
            state.ledger.lend(state.round, state.weights)
            update = torch.from_numpy(honest if client >= 30 else aim + honest / 9).float()
            _, state = server.receive(state, Upload(int(client), state.round, update))
    trust = state.defense.standing.trust
    assert (trust[:30] < 0.5).all()
    assert (trust[30:] >= 0.5).double().mean() > 0.95


@pytest.mark.parametrize(("neighbours", "trusted"), [(False, True), (True, False)])
def test_neighbours_tell_who_hides_an_aim_behind_its_own_updates(neighbours, trusted):
    """40 clients of 8 kinds, 8 of them with a common aim of the length of what their kind sends."""
    rng = np.random.default_rng(8)
    kinds, aim = rng.normal(size=(8, 600)), rng.normal(size=600)
    server, state = start(0, 600, 40, neighbours=neighbours)
    for _ in range(30):
        for client in rng.permutation(40):
            update = kinds[client % 8] + 0.5 * rng.normal(size=600) + (client % 5 == 0) * 0.6 * aim
            state.ledger.lend(state.round, state.weights)
            upload = Upload(int(client), state.round, torch.from_numpy(update).float())
            _, state = server.receive(state, upload)
    trust = state.defense.standing.trust
    malicious = torch.arange(40) % 5 == 0
    assert ((trust[malicious] > 0.5) == trusted).all()
    assert (trust[~malicious] > 0.5).all()
