"""What `adaptive` uploads against trust clipping."""

import numpy as np
import pytest
import torch
from reference.trust_clipping import group_weights, novelty_weights

from secureafl.attacks import blending
from secureafl.attacks.adaptive import Adaptive
from secureafl.core.server import Server, Upload
from secureafl.core.types import (
    Arrival,
    AttackContext,
    AttackerView,
    ClientGradients,
    ServerSnapshot,
    ServerView,
)
from secureafl.defenses import TrustClipping

CLIENTS, DIM, RATE = 20, 60, 0.05
MALICIOUS = np.arange(CLIENTS) % 5 == 0  # one of each kind
ONE, LAYOUT = torch.ones(1), {"weight": (DIM,)}
CONTEXT = AttackContext(CLIENTS, 4, 2, (1,), ONE, ONE, LAYOUT, torch.Generator())


class Federation:
    """Four kinds of honest clients, who differ and share a way down, and a liar of each kind."""

    def __init__(self, strength=1.0, neighbours=True):
        rng = np.random.default_rng(0)
        self.rng, self.defense = rng, TrustClipping(neighbours=neighbours)
        self.centres = 2 + np.repeat(rng.normal(size=(4, DIM)), 5, axis=0)
        self.server = Server(self.defense, CLIENTS, RATE)
        self.state = self.server.start(torch.zeros(DIM))
        self.attack = Adaptive(strength=strength)
        self.colluders = self.attack.init(CONTEXT)
        self.trained = ClientGradients(
            torch.zeros(CLIENTS, DIM),
            torch.zeros(CLIENTS, dtype=torch.bool),
            torch.from_numpy(MALICIOUS),
        )

    def arrive(self, client, lying=True):
        weights, noise = self.state.weights.numpy(), 0.3 * self.rng.normal(size=DIM)
        upload = torch.from_numpy(weights - self.centres[client] + noise).float()
        self.trained.gradients[client], self.trained.known[client] = upload, True
        if lying and MALICIOUS[client]:
            upload = self.poisoned(client, upload)
        self.state.ledger.lend(self.state.round, self.state.weights)
        sent = Upload(client, self.state.round, upload)
        decision, self.state = self.server.receive(self.state, sent)
        return decision

    def poisoned(self, client, gradient):
        weights, number = self.state.weights, int(np.cumsum(MALICIOUS)[client]) - 1
        server = ServerView(torch.tensor(self.state.round), weights, RATE)
        snapshot = ServerSnapshot(self.defense, self.state.defense, server)
        draws = torch.Generator().manual_seed(self.state.round)
        seen = (self.state.round, number, RATE, draws, lambda *_: gradient, self.trained, snapshot)
        arrival = Arrival(torch.tensor(client), torch.tensor(0), gradient, weights)
        upload, self.colluders = self.attack.poison_update(
            self.colluders, arrival, AttackerView(*seen)
        )
        return upload


def warm(lying, uploads=6, **given):
    federation = Federation(**given)
    order = federation.rng.permutation(np.repeat(np.arange(CLIENTS), uploads))
    decisions = [(client, federation.arrive(int(client), lying)) for client in order]
    return federation, decisions


@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_an_upload_is_own_gradient_and_the_reversed_honest_mean_in_the_shares_decided(strength):
    federation, _ = warm(lying=True, strength=strength)
    share = strength * float(federation.colluders.share)
    gradient = federation.trained.gradients[5]
    upload = federation.poisoned(5, gradient).double().numpy()
    rows = federation.trained.gradients[~MALICIOUS].double().numpy()
    slow = federation.colluders.state.reference.numpy()
    own = gradient.double().numpy() / np.linalg.norm(gradient.double().numpy())
    wanted = np.sqrt(1 - share**2) * own - share * slow / np.linalg.norm(slow)
    wanted *= np.linalg.norm(rows, axis=1).max() / np.linalg.norm(wanted)
    np.testing.assert_allclose(upload, wanted, rtol=1e-4, atol=1e-4)


def gain_of(share, rows, aim):
    """What the liars' part of the trust is worth to them, if they send such mixtures."""
    mixed = rows.copy()
    mixed[MALICIOUS] = np.sqrt(1 - share**2) * rows[MALICIOUS] + share * aim
    weights = np.multiply(novelty_weights(list(mixed)), group_weights(list(mixed)))
    return share * weights[MALICIOUS].sum() / weights.sum()


@pytest.mark.parametrize(("common", "best"), [(0.0, 0.7), (0.3, 0.8), (2.0, 0.9)])
def test_the_share_is_the_one_that_reaches_the_model_with_the_most_weight(common, best):
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(CLIENTS, DIM)) + common * rng.normal(size=DIM)) / DIM**0.5
    aim = -rows[~MALICIOUS].mean(axis=0) / np.linalg.norm(rows[~MALICIOUS].mean(axis=0))
    parts, all_known = np.vstack([rows, aim]), np.ones(CLIENTS, dtype=bool)
    found = blending._best_share(parts @ parts.T, all_known, MALICIOUS, None)
    gains = {share: gain_of(share, rows, aim) for share in np.arange(9, 1, -1) / 10}
    assert gains[found] == pytest.approx(max(gains.values()))
    assert found == best


def test_shares_that_neighbours_see_are_not_chosen():
    rng = np.random.default_rng(2)
    kinds, noise, aim = (rng.normal(size=(n, 300)) / 300**0.5 for n in (8, 40, 1))
    parts = np.vstack([kinds[np.arange(40) % 8] + 0.1 * noise, aim])
    malicious = np.arange(40) % 3 == 0  # some of each kind
    given = parts @ parts.T, np.ones(40, dtype=bool), malicious
    free = blending._best_share(*given, None)
    assert free > blending._best_share(*given, np.ones(40))


def test_where_nothing_is_checked_most_of_an_upload_is_poisoned(monkeypatch):
    monkeypatch.setattr(blending, "weights_of_known", lambda gram, *_: np.ones(len(gram)))
    federation, _ = warm(lying=True)
    assert float(federation.colluders.share) == 0.9


def test_liars_are_trusted_if_neighbours_do_not_judge_and_the_model_is_held_back():
    away = []
    for lying in (True, False):
        federation, decisions = warm(lying, uploads=20, neighbours=False)
        goal = federation.centres[~MALICIOUS].mean(axis=0)
        away.append(np.linalg.norm(federation.state.weights.numpy() - goal))
        late = [bool(d.accepted) for client, d in decisions[200:] if MALICIOUS[client]]
        assert np.mean(late) > 0.3
    assert away[0] > 1.2 * away[1]


def test_before_anybody_honest_is_known_the_gradient_is_uploaded():
    federation, gradient = Federation(), torch.ones(DIM)
    federation.trained.known[5], federation.trained.gradients[5] = True, gradient
    assert torch.equal(federation.poisoned(5, gradient), gradient)
    federation.trained.known[0], federation.trained.gradients[0] = True, gradient
    assert torch.equal(federation.poisoned(0, gradient), gradient)
