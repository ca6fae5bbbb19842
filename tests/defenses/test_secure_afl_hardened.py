import numpy as np
import pytest
import torch
from defending import DIM, SideBySide, streams
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import secure_afl_hardened as oracle

from secureafl.core.errors import ConfigError
from secureafl.core.server import Server, Upload
from secureafl.core.trust import (
    consistency_weights,
    curvature_weights,
    no_consistency,
    no_curvature,
    similarity_weights,
    update_consistency,
    update_curvature,
)
from secureafl.defenses import SecureAflHardened

DEFAULTS = {
    "clip_norm": 50.0,
    "clip_to_median_norm": True,
    "short_momentum": 0.5,
    "long_momentum": 0.95,
    "arrival_decay": 0.8,
    "similarity_penalty": 4.0,
    "disagreement_penalty": 4.0,
    "consistency": True,
    "curvature": True,
}


def side_by_side(num_clients=7, **given):
    values = (DEFAULTS | given).values()
    server = oracle.HardenedServer(num_clients, *values)
    both = SideBySide(SecureAflHardened(*values), num_clients, server)
    both.tolerance = 1e-8  # small differences of directions, raised to powers
    return both


def test_the_oracle_is_given_the_defaults():
    assert SecureAflHardened(*DEFAULTS.values()) == SecureAflHardened()


@given(
    stream=streams(7, min_size=20, max_size=60),
    changed=st.fixed_dictionaries(
        {},
        optional={
            "clip_norm": st.just(0.3),
            "clip_to_median_norm": st.just(False),
            "short_momentum": st.just(0.0),
            "long_momentum": st.sampled_from([0.0, 0.5]),
            "arrival_decay": st.sampled_from([0.3, 1.0]),
            "similarity_penalty": st.sampled_from([0.0, 1.0]),
            "disagreement_penalty": st.sampled_from([0.0, 1.0]),
            "consistency": st.just(False),
            "curvature": st.just(False),
        },
    ),
)
@settings(max_examples=settings().max_examples // 4)
def test_streams_agree_with_the_oracle(stream, changed):
    side_by_side(7, **changed).play(stream)


def clients_of_kinds(kinds, each, noise, rng, dim=200):
    """Update histories of honest clients: a few of every kind, with noise."""
    centres = rng.normal(size=(kinds, dim))
    rows = np.repeat(centres, each, axis=0)
    return rows + noise * rng.normal(size=rows.shape)


def weights_of(rows, similarity_penalty=4.0, disagreement_penalty=4.0):
    rows = torch.from_numpy(rows)
    return similarity_weights(
        rows @ rows.T,
        torch.ones(len(rows), dtype=torch.bool),
        similarity_penalty,
        disagreement_penalty,
    )


@pytest.mark.parametrize("attackers", [10, 26])
def test_many_alike_attackers_weigh_hardly_more_than_a_typical_group(attackers):
    rng = np.random.default_rng(0)
    honest = clients_of_kinds(8, 5, 0.3, rng)
    attack = rng.normal(size=honest.shape[1])
    rows = np.concatenate([honest, attack + 0.1 * rng.normal(size=(attackers, len(attack)))])
    weights = weights_of(rows).numpy()
    assert weights[40:].sum() < 0.1 * weights.sum()
    assert weights[:40].min() > 0.5


def test_alike_clients_that_are_the_majority_keep_their_weight():
    rng = np.random.default_rng(1)
    common = rng.normal(size=200)
    honest = common + 0.5 * rng.normal(size=(30, 200))
    attackers = -common + 0.1 * rng.normal(size=(20, 200))
    weights = weights_of(np.concatenate([honest, attackers])).numpy()
    assert weights[30:].sum() < 0.1 * weights.sum()
    assert np.median(weights[:30]) > 0.9


def test_client_opposed_by_its_kind_loses_weight():
    rng = np.random.default_rng(2)
    rows = clients_of_kinds(8, 5, 0.2, rng)
    rows[::5] *= -1  # one of each kind sends the reverse
    weights = weights_of(rows).numpy().reshape(8, 5)
    assert weights[:, 0].max() < 0.3 * weights[:, 1:].min()


def test_alike_clients_weigh_the_same():
    rng = np.random.default_rng(3)
    rows = clients_of_kinds(10, 5, 0.0, rng)
    weights = weights_of(rows).numpy()
    assert weights.min() > 0.6
    assert weights.max() == 1


def test_negative_curvature_and_noise_have_no_weight():
    curvature, rng = no_curvature(9, torch.device("cpu")), np.random.default_rng(4)
    usual = np.array([0.3] * 6 + [-0.2, 0.0, 0.25])
    for client, mean in enumerate(usual):
        for value in mean + 0.05 * rng.normal(size=30):
            args = torch.tensor(client), torch.tensor(value, dtype=torch.float64)
            curvature = update_curvature(curvature, *args, torch.tensor(True), 0.95)
    weights = curvature_weights(curvature, 0.95, torch.ones(9, dtype=torch.bool))
    assert weights[:6].min() > 0.9
    assert weights[6:8].tolist() == [0, 0]
    assert weights[8] > 0.9


def test_curvature_does_not_count_where_its_median_is_negative():
    curvature = no_curvature(5, torch.device("cpu"))
    for client in [0, 1, 2, 3, 4] * 4:
        cosine = torch.tensor(-0.3 if client else 0.5, dtype=torch.float64)
        curvature = update_curvature(
            curvature, torch.tensor(client), cosine, torch.tensor(True), 0.9
        )
    assert curvature_weights(curvature, 0.9, torch.ones(5, dtype=torch.bool)).tolist() == [1] * 5


def histories_of(uploads, memory=0.95):
    """Statistics of uploads (client, upload, dimension), and the histories' squared norms."""
    stats = no_consistency(len(uploads), torch.device("cpu"))
    histories = uploads[:, 0].copy()
    for k, own in enumerate(uploads):
        for number, upload in enumerate(own):
            known = torch.tensor(number > 0)
            squared = torch.tensor(upload @ upload)
            update_consistency(stats, torch.tensor(k), known, squared, memory)
            if number:
                histories[k] = memory * histories[k] + (1 - memory) * upload
    return stats, torch.from_numpy((histories**2).sum(axis=1))


@pytest.mark.parametrize("attackers", [2, 8])
def test_clients_that_send_noise_have_no_weight(attackers):
    rng = np.random.default_rng(6)
    uploads = rng.normal(size=(20, 40, 3000))
    constant = 0.5 * rng.normal(size=(20 - attackers, 1, 3000))
    uploads[attackers:] += constant  # a fifth of an upload's square
    stats, squared = histories_of(uploads)
    weights = consistency_weights(stats, squared, torch.ones(20, dtype=torch.bool))
    assert weights.tolist() == [0] * attackers + [1] * (20 - attackers)


def test_consistency_does_not_count_if_all_send_noise_or_uploads_are_few():
    everybody = torch.ones(20, dtype=torch.bool)
    uploads = np.random.default_rng(7).normal(size=(20, 40, 3000))
    assert consistency_weights(*histories_of(uploads), everybody).tolist() == [1] * 20
    uploads[5:] += 1
    assert consistency_weights(*histories_of(uploads[:, :5]), everybody).tolist() == [1] * 20


def trained_away(defense, attack, rounds=300):
    """Distance of the final model from the honest optimum; two fifths of the clients attack."""
    rng = np.random.default_rng(5)
    centres = np.repeat(rng.normal(size=(4, 30)), 5, axis=0)  # of 20 clients of four kinds
    attackers = np.arange(20) % 5 < 2
    honest = centres[~attackers].mean(axis=0)
    server = Server(defense, 20, 0.05)
    state = server.start(torch.zeros(30, dtype=torch.float64))
    for now in range(rounds):
        client, weights = int(rng.integers(20)), state.weights.numpy()
        gradient = weights - centres[client] + 0.3 * rng.normal(size=30)
        if attackers[client]:
            gradient = attack(gradient, weights - honest, rng)
        state.ledger.lend(now, state.weights)
        _, state = server.receive(state, Upload(client, now, torch.from_numpy(gradient)))
    return float(np.linalg.norm(state.weights.numpy() - honest))


ATTACKS = {
    "sign flip": lambda own, mean, rng: -1.7 * own,
    "noise": lambda own, mean, rng: 100 * rng.normal(size=30),
    "one vector for all": lambda own, mean, rng: -3 * np.ones(30),
    "the mean turned": lambda own, mean, rng: -5 * mean,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_two_fifths_of_attackers_do_not_steer_the_model(attack):
    nothing = {
        "similarity_penalty": 0.0,
        "disagreement_penalty": 0.0,
        "consistency": False,
        "curvature": False,
    }
    trusting = SecureAflHardened(clip_to_median_norm=False, **nothing)
    assert not trained_away(trusting, attack) < 2 * trained_away(SecureAflHardened(), attack)


def test_the_first_steps_are_short():
    both = side_by_side(30)
    first = both.arrive(0, 0, np.full(DIM, 1e6))
    assert float(first.direction.norm()) == pytest.approx(50 / 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_norm", 0),
        ("short_momentum", 1.0),
        ("long_momentum", -0.1),
        ("similarity_penalty", -1.0),
    ],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        SecureAflHardened(**{name: value})
