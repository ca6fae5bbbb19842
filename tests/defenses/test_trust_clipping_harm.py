"""The bound of docs/robustness.md in the honest clients' spread, against what a search finds."""

import numpy as np
import pytest
import torch

from secureafl.core.server import Server, Upload
from secureafl.defenses import TrustClipping, trust_clipping

DIM = 3


def bound(clients, malicious):
    """On how far the centre is from the honest mean, in spreads, where all are trusted."""
    root = np.sqrt(malicious / (clients - malicious))
    return max(4.0, (1 + root) / (1 - root))


def honest_uploads(rng, count, offset):
    """Uploads whose spread is 1, around a mean of length `offset`."""
    rows = rng.normal(size=(count, DIM)) * rng.lognormal(sigma=0.5, size=(count, 1))
    rows -= rows.mean(axis=0)
    rows /= np.linalg.norm(rows, axis=1).max()
    return rows + offset * np.eye(DIM)[0]


def lie(strategy, place, centre, mean):
    """Away from the honest mean, as seen from the centre, or from the mean, or against it."""
    along, scale, aside = strategy
    ahead = centre - mean
    ahead = ahead / max(np.linalg.norm(ahead), 1e-9)
    start = {0: centre, 1: mean, 2: 0 * mean}[place]
    return start + scale * (along * ahead + (1 - abs(along)) * aside) - (place == 2) * mean


def settled(honest, malicious, strategy, place, rounds):
    """The furthest that the centre is from the honest mean in the second half of a run."""
    clients, mean = len(honest) + malicious, honest.mean(axis=0)
    server = Server(TrustClipping(), clients, 0.0, seed=0)
    state, rng, furthest = (
        server.start(torch.zeros(DIM, dtype=torch.float64)),
        np.random.default_rng(0),
        0,
    )
    for number in range(rounds):
        for client in rng.permutation(clients):
            centre = state.defense.centre.numpy()
            mine = client < len(honest)
            upload = honest[client] if mine else lie(strategy, place, centre, mean)
            state.ledger.lend(state.round, state.weights)
            given = Upload(int(client), state.round, torch.from_numpy(upload))
            _, state = server.receive(state, given)
        if number >= rounds // 2:
            furthest = max(furthest, np.linalg.norm(state.defense.centre.numpy() - mean))
    return furthest


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 20.0])
@pytest.mark.parametrize(("clients", "malicious"), [(10, 2), (9, 4)])
def test_the_worst_that_a_search_finds_is_within_the_bound(monkeypatch, clients, malicious, offset):
    """With everybody trusted: what trust takes from malicious clients only helps."""
    monkeypatch.setattr(trust_clipping, "judge_clients", lambda *_: None)
    rng, found = np.random.default_rng(1), []
    honest = honest_uploads(rng, clients - malicious, offset)
    for place in range(3):
        best, start = 0.0, (1.0, 3.0, np.eye(DIM)[1])
        for _ in range(10):  # climbs from what was worst so far
            along, scale, aside = start
            tried = (
                float(np.clip(along + 0.5 * rng.normal(), -1, 1)),
                float(scale * np.exp(rng.normal())),
                aside + 0.3 * rng.normal(size=DIM),
            )
            harm = settled(honest, malicious, tried, place, rounds=40)
            if harm > best:
                best, start = harm, tried
        found.append(best)
    assert max(found) > 0.15, "what was searched does no harm at all"
    assert max(found) <= bound(clients, malicious)


def test_uploads_that_agree_leave_a_minority_no_room():
    """Clipped around zero, two of ten that send the opposite would take 0.4 of every step."""
    honest = honest_uploads(np.random.default_rng(2), 8, offset=100.0)
    assert settled(honest, 2, (-1.0, 0.0, np.zeros(DIM)), 2, rounds=120) < bound(10, 2)
