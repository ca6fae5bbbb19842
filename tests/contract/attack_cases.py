"""A small run as an attack sees it: a real server, and clients with quadratic losses."""

from collections.abc import Mapping

import torch
from contract.cases import root_data_for

from secureafl.core.server import Server, Upload
from secureafl.core.trees import name_tensors
from secureafl.core.types import (
    Arrival,
    AttackContext,
    AttackerView,
    ClientGradients,
    ServerSnapshot,
    ServerView,
)
from secureafl.defenses import SecureAfl

CLIENTS, CLASSES, RATE = 6, 10, 0.05
LAYOUT = {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (CLASSES, 4), "2.bias": (CLASSES,)}
DIM = 66


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def context(seed=0, classes=CLASSES, malicious=3):
    return AttackContext(
        num_clients=CLIENTS,
        num_malicious=malicious,
        num_classes=classes,
        input_shape=(1, 28, 28),
        pixel_mean=torch.tensor([0.3]),
        pixel_std=torch.tensor([0.35]),
        layout=LAYOUT,
        generator=generator(seed),
    )


class Play:
    """Clients take turns; the attack is shown what its `knows` allows, and must leave it alone."""

    def __init__(
        self, attack, dtype=torch.float32, defense=None, classes=CLASSES, malicious=3, scale=1.0
    ):
        self.attack, self.scale = attack, scale
        random = torch.randn(2 + CLIENTS, DIM, generator=generator(7), dtype=dtype)
        weights, self.hessian, self.centres = random[0], 0.5 + random[1].abs(), random[2:]
        defense = defense or SecureAfl()
        trusted = root_data_for(defense, self.hessian, self.centres)
        self.server = Server(defense, CLIENTS, RATE, trusted)
        self.server_state = self.server.start(weights)
        self.models = [weights]
        self.malicious = torch.arange(CLIENTS) >= CLIENTS - malicious
        self.table = ClientGradients(
            torch.zeros(CLIENTS, DIM, dtype=dtype), torch.zeros_like(self.malicious), self.malicious
        )
        self.state = attack.init(context(classes=classes, malicious=malicious))

    def uploads(self, count):
        """What malicious clients upload in the next rounds."""
        return [made for made in (self.arrival() for _ in range(count)) if made is not None]

    def arrival(self):
        """One round; the upload if a malicious client made it."""
        now = self.server_state.round
        client, version = (5 * now + 3) % CLIENTS, max(0, now - now % 3)
        base = self.models[version]
        update = gradient = self.gradient(client, base, now)
        if bool(self.malicious[client]) or self.attack.knows in ("everybody", "defense"):
            self.table.gradients[client], self.table.known[client] = gradient, True
        if self.malicious[client]:
            numbers = torch.tensor([client, now - version])
            update = self.poisoned(Arrival(*numbers, gradient, base))
        self.server_state.ledger.lend(version, base)
        _, self.server_state = self.server.receive(
            self.server_state, Upload(client, version, update)
        )
        self.models.append(self.server_state.weights.clone())
        return update if self.malicious[client] else None

    def gradient(self, client, weights, number):
        noise = torch.randn(DIM, generator=generator(1000 + number), dtype=weights.dtype)
        return self.scale * (self.hessian * (weights - self.centres[client]) + 0.1 * noise)

    def poisoned(self, trained):
        """What the attack makes of it; nothing it was shown may have changed afterwards."""
        seen = self.view(int(trained.client))
        shown = {**name_tensors(trained, "trained"), **visible(seen)}
        copies = {name: tensor.clone() for name, tensor in shown.items()}
        update, self.state = self.attack.poison_update(self.state, trained, seen)
        for name, tensor in shown.items():
            assert torch.equal(tensor, copies[name]), name
        return update

    def view(self, client):
        now, knows = self.server_state.round, self.attack.knows
        whole = ServerView(
            torch.tensor(now), self.server_state.weights, RATE, self.server.root_data
        )
        return AttackerView(
            round=now,
            attacker_index=int(self.malicious[:client].sum()),
            learning_rate=RATE,
            generator=generator(100 + now),
            train=lambda weights, k: self.gradient(client, weights, 10_000 + 100 * now + k),
            clients=None if knows == "own" else self.table,
            snapshot=ServerSnapshot(self.server.defense, self.server_state.defense, whole)
            if knows == "defense"
            else None,
        )


def visible(seen) -> Mapping[str, torch.Tensor]:
    """All tensors of a view, by name."""
    found = name_tensors(seen.clients or (), "table")
    if seen.snapshot:
        found |= name_tensors(seen.snapshot.state, "defense")
        found["weights"] = seen.snapshot.server.weights
    return found
