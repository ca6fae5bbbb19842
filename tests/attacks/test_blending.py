import numpy as np
import pytest
import torch

from secureafl.attacks.blending import Colluders, blended
from secureafl.core.server import Server, Upload
from secureafl.core.trust import lower_median
from secureafl.core.types import AttackerView, ClientGradients
from secureafl.defenses import SecureAflHardened

CLIENTS, DIM = 20, 60
MALICIOUS = np.arange(CLIENTS) % 5 == 0  # one of each kind


def view(attacker_index, lying=MALICIOUS):
    gradients = torch.zeros(CLIENTS, DIM)
    trained = ClientGradients(
        gradients, torch.ones(CLIENTS, dtype=torch.bool), torch.from_numpy(lying)
    )
    return AttackerView(
        0, attacker_index, 0.05, torch.Generator(), lambda *_: gradients[0], trained
    )


class Federation:
    """Four kinds of honest clients on a hardened server, who differ and share a way down."""

    def __init__(self, defense):
        rng = np.random.default_rng(0)
        self.rng, self.defense = rng, defense
        self.centres = 2 + np.repeat(rng.normal(size=(4, DIM)), 5, axis=0)
        self.server = Server(defense, CLIENTS, 0.02)
        self.state = self.server.start(torch.zeros(DIM))
        self.colluders = Colluders(
            torch.zeros(MALICIOUS.sum(), DIM),
            torch.zeros(MALICIOUS.sum(), dtype=torch.bool),
            torch.zeros(DIM),
        )

    def arrive(self, client, lying=True):
        weights, noise = self.state.weights.numpy(), 0.3 * self.rng.normal(size=DIM)
        upload = torch.from_numpy(weights - self.centres[client] + noise).float()
        if lying and MALICIOUS[client]:
            upload = self.poisoned(int(np.cumsum(MALICIOUS)[client]) - 1, upload)
        self.state.ledger.lend(self.state.round, self.state.weights)
        sent = Upload(client, self.state.round, upload)
        decision, self.state = self.server.receive(self.state, sent)
        return decision

    def poisoned(self, attacker_index, gradient):
        parts = (self.defense, self.state.defense, self.colluders, gradient, view(attacker_index))
        upload, self.colluders = blended(*parts, 1.0)
        return upload


def warm(defense, lying, uploads=6):
    federation = Federation(defense)
    for client in federation.rng.permutation(np.repeat(np.arange(CLIENTS), uploads)):
        federation.arrive(int(client), lying)
    return federation


def test_an_upload_is_as_long_as_the_median_and_its_lie_points_back():
    federation = warm(SecureAflHardened(), lying=False)
    state = federation.state.defense
    gradient = torch.from_numpy(federation.rng.normal(size=DIM)).float()
    upload = federation.poisoned(0, gradient)
    usual = lower_median(state.stats.norms, state.sent.known)
    assert float(upload.norm()) <= 1.01 * float(usual) * 2**0.5
    honest = state.recent_update[torch.from_numpy(~MALICIOUS)].mean(dim=0)
    assert upload @ honest < gradient @ honest * (usual / gradient.norm())


def test_where_nothing_is_checked_the_whole_upload_is_poisoned():
    defense = SecureAflHardened(similarity_penalty=0.0, disagreement_penalty=0.0, curvature=False)
    federation = warm(defense, lying=False)
    gradient = torch.from_numpy(federation.rng.normal(size=DIM)).float()
    upload = federation.poisoned(0, gradient)
    honest = federation.state.defense.recent_update[torch.from_numpy(~MALICIOUS)].mean(dim=0)
    assert torch.cosine_similarity(upload, -honest, dim=0) == pytest.approx(1, abs=0.05)


def test_the_model_is_held_back():
    away = []
    for lying in (True, False):
        federation = warm(SecureAflHardened(), lying, uploads=20)
        goal = federation.centres[~MALICIOUS].mean(axis=0)
        away.append(np.linalg.norm(federation.state.weights.numpy() - goal))
    assert away[0] > 1.5 * away[1]


def test_before_anybody_honest_is_known_the_gradient_is_uploaded():
    federation, gradient = Federation(SecureAflHardened()), torch.ones(DIM)
    assert torch.equal(federation.poisoned(1, gradient), gradient)
