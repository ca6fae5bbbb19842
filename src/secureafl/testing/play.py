"""A small run as an attack sees it: a real server, and clients with quadratic losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
from secureafl.testing.driver import root_data_for
from secureafl.testing.rules import unchanged

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.core.protocols import Attack, Defense

CLIENTS, CLASSES, RATE = 6, 10, 0.05
LAYOUT: dict[str, tuple[int, ...]] = {
    "0.weight": (4, 3),
    "0.bias": (4,),
    "2.weight": (CLASSES, 4),
    "2.bias": (CLASSES,),
}
DIM = 66


def generator(seed: int = 0) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def context(seed: int = 0, classes: int = CLASSES, malicious: int = 3) -> AttackContext:
    """Six clients with grey images of 28 x 28 pixels and a network of two layers."""
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
        self,
        attack: Attack,
        dtype: torch.dtype = torch.float32,
        defense: Defense | None = None,
        classes: int = CLASSES,
        malicious: int = 3,
        scale: float = 1.0,
        name: str = "",
    ) -> None:
        self.attack, self.scale, self.name = attack, scale, name or type(attack).__name__
        random = torch.randn(2 + CLIENTS, DIM, generator=generator(7), dtype=dtype)
        weights, self.hessian, self.centres = random[0], 0.5 + random[1].abs(), random[2:]
        defense = defense or SecureAfl()
        root_data = root_data_for(defense, self.hessian, self.centres)
        self.server = Server(defense, CLIENTS, RATE, root_data, seed=7)
        self.server_state = self.server.start(weights)
        self.models = [weights]
        self.malicious = torch.arange(CLIENTS) >= CLIENTS - malicious
        self.table = ClientGradients(
            torch.zeros(CLIENTS, DIM, dtype=dtype), torch.zeros_like(self.malicious), self.malicious
        )
        self.state = attack.init(context(classes=classes, malicious=malicious))

    def uploads(self, count: int) -> list[Float[Tensor, " d"]]:
        """What malicious clients upload in the next rounds."""
        return [made for made in (self.arrival() for _ in range(count)) if made is not None]

    def arrival(self) -> Float[Tensor, " d"] | None:
        """One round; the upload if a malicious client made it."""
        now = self.server_state.round
        client, version = (5 * now + 3) % CLIENTS, max(0, now - now % 3)
        base = self.models[version]
        update = gradient = self.gradient(client, base, now)
        if bool(self.malicious[client]) or self.attack.knows in ("everybody", "defense"):
            self.table.gradients[client], self.table.known[client] = gradient, True
        if self.malicious[client]:
            staleness = torch.tensor(now - version)
            update = self.poisoned(Arrival(torch.tensor(client), staleness, gradient, base))
        self.server_state.ledger.lend(version, base)
        _, self.server_state = self.server.receive(
            self.server_state, Upload(client, version, update)
        )
        self.models.append(self.server_state.weights.clone())
        return update if self.malicious[client] else None

    def gradient(self, client: int, weights: Float[Tensor, " d"], number: int) -> Tensor:
        """What a client trains at these weights, with noise that depends on the number."""
        noise = torch.randn(DIM, generator=generator(1000 + number), dtype=weights.dtype)
        return self.scale * (self.hessian * (weights - self.centres[client]) + 0.1 * noise)

    def poisoned(self, arrival: Arrival) -> Float[Tensor, " d"]:
        """What the attack makes of it; nothing it was shown may have changed afterwards."""
        view = self.view(int(arrival.client))
        shown = {**name_tensors(arrival, "arrival"), **_visible(view)}
        with unchanged(shown, f"{self.name}.poison_update"):
            update, self.state = self.attack.poison_update(self.state, arrival, view)
        return update

    def view(self, client: int) -> AttackerView:
        """What the attack may know now."""
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


def _visible(view: AttackerView) -> dict[str, Tensor]:
    """All tensors of a view, by name."""
    found = name_tensors(view.clients or (), "view.clients")
    if view.snapshot:
        found |= name_tensors(view.snapshot.state, "view.snapshot.state")
        found["view.snapshot.server.weights"] = view.snapshot.server.weights
    return found
